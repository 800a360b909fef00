"""Play a step on fleets of several sizes: recipe/online_refiner/sizing/__main__.py."""

import sys

from recipe.online_refiner.sizing.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
