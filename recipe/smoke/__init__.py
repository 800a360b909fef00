"""Does everything work here that a run needs? On a node ``scripts/gpu_smoke.sh``, of engines ``check_backends.py``."""
