#!/usr/bin/env bash
# From a fresh clone to a trained model: install what is missing, then train SmolLM2-135M-Instruct with the online refiner
# on two CPU cores and show what it learned. Any override may follow, e.g. trainer.total_training_steps=20.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
python=.venv/bin/python
data=runs/data/mini_apps_easy
model=$("$python" scripts/get_smollm2.py)
if [ ! -f "$data/train.parquet" ]; then "$python" scripts/prepare_data.py mini-apps --level easy --output "$data"; fi
run_dir=runs/quickstart-$(date +%Y%m%d-%H%M%S)
exec "$python" -m recipe.online_refiner.main experiment=quickstart "actor_rollout_ref.model.path=$model" "run_dir=$run_dir" "$@"
