#!/usr/bin/env bash
# From a fresh clone to a trained model: install what is missing, then train SmolLM2-135M-Instruct with the online refiner
# and show what it learned: on one GPU where setup.sh installed packages for GPUs, else on two CPU cores. Any override may follow, e.g. trainer.total_training_steps=20.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
python=.venv/bin/python
model=$("$python" scripts/get_smollm2.py)
platform=$(cut -d' ' -f1 .venv/.installed)
if [ "$platform" != cpu ]; then platform=gpu; fi # with Megatron's packages too
run_dir=runs/quickstart-$(date +%Y%m%d-%H%M%S)
exec "$python" -m recipe.online_refiner.main experiment=quickstart "platform=$platform" \
    "actor_rollout_ref.model.path=$model" "run_dir=$run_dir" "$@"
