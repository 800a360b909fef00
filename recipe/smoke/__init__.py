"""The smoke test, ``online-refiner smoke``, which checks on a node that everything a run needs works."""
