#!/usr/bin/env bash
# Problems with tests of one's own on two CPU cores. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python data=runs/examples/data/own_tests
model=$("$python" scripts/get_smollm2.py)
.venv/bin/online-refiner prepare apps examples/own_tests/problems.jsonl --output "$data"
exec .venv/bin/online-refiner train twin=cpu "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data/train.parquet" "data.val_files=$data/train.parquet" data.max_prompt_length=192 \
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.max_model_len=320 refiner.template=apps \
    reward.custom_reward_function.path=pkg://reward.verl_reward reward.custom_reward_function.name=compute_score \
    refiner.skip_reward_at_least=1.0 run_dir=runs/examples/own_tests trainer.resume_mode=disable "$@"
