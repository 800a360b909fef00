#!/usr/bin/env bash
# A reward function of one's own on two CPU cores. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python here=examples/own_verifier data=runs/examples/data/json_keys.parquet
model=$("$python" scripts/get_smollm2.py)
mkdir -p "$(dirname "$data")"
"$python" $here/verifier.py "$data"
exec .venv/bin/online-refiner train twin=cpu "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data" "data.val_files=$data" actor_rollout_ref.rollout.n=4 \
    reward.custom_reward_function.path=$here/verifier.py reward.custom_reward_function.name=compute_score \
    refiner.skip_reward_at_least=1.0 run_dir=runs/examples/own_verifier trainer.resume_mode=disable "$@"
