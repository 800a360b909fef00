#!/usr/bin/env bash
# A recipe of one's own on two CPU cores. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python data=recipe/quickstart
model=$("$python" scripts/get_smollm2.py)
exec "$python" -m recipe.cpu_platform.launch "${SCRIPT:-examples/own_recipe/train.py}" "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data/train.parquet" "data.val_files=$data/val.parquet" refiner.template=apps \
    reward.custom_reward_function.path=pkg://reward.verl_reward reward.custom_reward_function.name=compute_score \
    run_dir=runs/examples/own_recipe trainer.resume_mode=disable "$@"
