#!/usr/bin/env bash
# Minutes on one node, before a long run on many: trains a tiny model in each placement of the refiner, and prints a table
# and a verdict; exits with 1 if something is wrong. In an image, or behind scripts/setup.sh.
#
#   bash scripts/gpu_smoke.sh [--platform cpu] [--gpus N] [--output DIR] [OVERRIDE...]
set -euo pipefail
cd "$(dirname "$0")/.."
python=python
if [ -x .venv/bin/python ]; then python=.venv/bin/python; fi
exec "$python" -m recipe.smoke "$@"
