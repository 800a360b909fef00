"""Train a small reward model from preference pairs: recipe/data_preparation/reward_model.py."""

import sys

from recipe.data_preparation.reward_model import main

if __name__ == "__main__":
    sys.exit(main())
