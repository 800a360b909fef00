"""The door to verl's trainer, workers and queue, whose private names it uses (``contract.py`` lists them)."""
