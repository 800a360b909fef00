"""Does everything work here that a run needs? On a node ``scripts/gpu_smoke.sh``, of engines ``check_backends.py``."""

from recipe.own_names import refuse_hidden

refuse_hidden(__name__, "refiner_worker")
