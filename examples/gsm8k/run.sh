#!/usr/bin/env bash
# GSM8K's preset on two CPU cores. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python data=runs/examples/data/word_problems
model=$("$python" scripts/get_smollm2.py)
.venv/bin/online-refiner prepare gsm8k --generated 50 --output "$data" >/dev/null
exec .venv/bin/online-refiner train experiment=gsm8k_grpo twin=math "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data/train.parquet" "data.val_files=$data/val.parquet" run_dir=runs/examples/gsm8k \
    trainer.resume_mode=disable "$@"
