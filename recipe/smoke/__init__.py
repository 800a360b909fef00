"""Minutes on one node before a long run on many: does everything work here that a run needs?

The real main job trains a tiny random model, once for each placement of the refiner, and its metrics are looked at.
``scripts/gpu_smoke.sh`` starts it.
"""
