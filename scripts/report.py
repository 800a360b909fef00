"""Make one page of any runs: recipe/report/__main__.py."""

import sys

from recipe.report.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
