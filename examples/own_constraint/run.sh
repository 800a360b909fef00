#!/usr/bin/env bash
# A constraint of one's own on two CPU cores, on the quickstart's task. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
model=$(.venv/bin/python scripts/get_smollm2.py)
export PYTHONPATH="$PWD/examples/own_constraint${PYTHONPATH:+:$PYTHONPATH}"
exec .venv/bin/online-refiner train experiment=quickstart "actor_rollout_ref.model.path=$model" \
    constraint.mode=soft:Soft trainer.total_training_steps=2 trainer.save_freq=-1 \
    run_dir=runs/examples/own_constraint trainer.resume_mode=disable "$@"
