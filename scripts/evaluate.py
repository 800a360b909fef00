"""Evaluate a model by pass@k: recipe/evaluation/__main__.py."""

import sys

from recipe.evaluation.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
