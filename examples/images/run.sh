#!/usr/bin/env bash
# Qwen2.5-VL counts shapes in pictures on one GPU. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
here=examples/images data=runs/examples/data/shapes
.venv/bin/python $here/shapes.py "$data"
exec .venv/bin/online-refiner train experiment=grpo "actor_rollout_ref.model.path=${MODEL:-Qwen/Qwen2.5-VL-3B-Instruct}" \
    "data.train_files=$data/train.parquet" "data.val_files=$data/val.parquet" data.train_batch_size=32 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=4 data.max_response_length=256 \
    reward.custom_reward_function.path=$here/shapes.py reward.custom_reward_function.name=compute_score \
    run_dir=runs/examples/images trainer.resume_mode=disable "$@"
