#!/usr/bin/env bash
# The quickstart's task with a template of one's own. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python
model=$("$python" scripts/get_smollm2.py)
exec .venv/bin/online-refiner train experiment=quickstart "actor_rollout_ref.model.path=$model" \
    refiner.template=examples/own_template/short.jinja trainer.total_training_steps=2 trainer.save_freq=-1 \
    run_dir=runs/examples/own_template trainer.resume_mode=disable "$@"
