#!/usr/bin/env bash
# The whole way on this machine's CPU: data, training, export, pass@1 before and after (docs/walkthrough.md).
# Overrides of the training may follow, e.g. trainer.total_training_steps=2.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=runs/walkthrough-$(date +%Y%m%d-%H%M%S)
bash scripts/quickstart.sh "run_dir=$folder/run" "$@"
python=.venv/bin/python
checkpoints=$folder/run/checkpoints
step=$(cat "$checkpoints/latest_checkpointed_iteration.txt")
"$python" -m verl.model_merger merge --backend fsdp --local_dir "$checkpoints/global_step_$step/actor" --target_dir "$folder/model"
for model in "$("$python" scripts/get_smollm2.py)" "$folder/model"; do
    "$python" scripts/evaluate.py --benchmark rows --data recipe/quickstart/val.parquet --model "$model" \
        --output "$folder/$(basename "$model").json"
done
