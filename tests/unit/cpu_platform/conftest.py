"""Select the CPU platform before the first import of verl."""

import os

from recipe.cpu_platform import ENVIRONMENT

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)
