"""Export a run's checkpoint as a Hugging Face folder: recipe/online_refiner/export.py."""

import sys

from recipe.online_refiner.export import main

if __name__ == "__main__":
    sys.exit(main())
