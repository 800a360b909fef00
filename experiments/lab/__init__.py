"""A small world to experiment in: a model that is its own refiner, made in minutes, and the arms to compare."""
