"""The door to verl's trainer, workers and queue, whose private names it uses (``tests/helpers/verl_contract.py``)."""
