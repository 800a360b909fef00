#!/usr/bin/env bash
# Two data sources, each refined in a way of its own, on two CPU cores; with REFINER_URL one of them by that server.
# Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python here=examples/by_source data=runs/examples/data/by_source
model=$("$python" scripts/get_smollm2.py)
for source in sums capitals; do
    .venv/bin/online-refiner prepare rows $here/$source.csv --name $source --val-fraction 0.25 --output $data/$source >/dev/null
done
sums=template:math,temperature:0.5
[ -z "${REFINER_URL:-}" ] || sums="template:math,url:'$REFINER_URL'"
exec .venv/bin/online-refiner train twin=cpu "actor_rollout_ref.model.path=$model" \
    "data.train_files=[$data/sums/train.parquet,$data/capitals/train.parquet]" \
    "data.val_files=[$data/sums/val.parquet,$data/capitals/val.parquet]" actor_rollout_ref.rollout.n=4 \
    reward.custom_reward_function.path=$here/rewards.py reward.custom_reward_function.name=compute_score \
    refiner.skip_reward_at_least=1.0 "refiner.by_source={sums:{$sums},capitals:{}}" \
    run_dir=runs/examples/by_source trainer.resume_mode=disable "$@"
