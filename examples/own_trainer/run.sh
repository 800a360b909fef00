#!/usr/bin/env bash
# A trainer of one's own on two CPU cores, on the data and the config of own_recipe. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
SCRIPT=examples/own_trainer/trainer.py exec bash examples/own_recipe/run.sh run_dir=runs/examples/own_trainer "$@"
