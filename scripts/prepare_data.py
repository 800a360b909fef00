"""Write training data in verl's schema: recipe/data_preparation/__main__.py."""

import sys

from recipe.data_preparation.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
