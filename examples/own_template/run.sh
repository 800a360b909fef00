#!/usr/bin/env bash
# The quickstart's task with a template of one's own. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python data=runs/examples/data/mini_apps
model=$("$python" scripts/get_smollm2.py)
"$python" scripts/prepare_data.py mini-apps --level easy --output "$data" >/dev/null
exec "$python" -m recipe.online_refiner.main experiment=quickstart "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data/train.parquet" "data.val_files=$data/val.parquet" \
    refiner.template=examples/own_template/short.jinja trainer.total_training_steps=2 trainer.save_freq=-1 \
    run_dir=runs/examples/own_template trainer.resume_mode=disable "$@"
