#!/usr/bin/env bash
# From a fresh clone to a trained model: install what is missing, then train SmolLM2-135M-Instruct with the online refiner
# and show what it learned: on one GPU where setup.sh installed packages for GPUs, else on two CPU cores. Any override may
# follow, e.g. trainer.total_training_steps=20. Where a run was stopped, the same command goes on with it.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
python=.venv/bin/python
model=$("$python" scripts/get_smollm2.py)
platform=$(cut -d' ' -f1 .venv/.installed)
if [ "$platform" != cpu ]; then platform=gpu; fi # with Megatron's packages too
arguments="$platform $*"

is_finished() { # FOLDER of a run: is its last step saved?
    local saved total
    saved=$(cat "$1/checkpoints/latest_checkpointed_iteration.txt" 2>/dev/null) || return 1
    total=$(sed -n 's/^  total_training_steps: //p' "$1/config.yaml" 2>/dev/null) # the trainer's
    [ "$saved" = "$total" ]
}

begin_or_go_on() { # set run_dir; whoever trains holds the lock of the folder's file `arguments`, as descriptor 9
    for run_dir in runs/quickstart-*; do
        if [ "$(cat "$run_dir/arguments" 2>/dev/null)" = "$arguments" ] && ! is_finished "$run_dir"; then
            exec 9<"$run_dir/arguments"
            if flock -n 9; then return; fi
        fi
    done
    run_dir=runs/quickstart-$(date +%Y%m%d-%H%M%S)
    mkdir -p "$run_dir"
    echo "$arguments" >"$run_dir/arguments"
    exec 9<"$run_dir/arguments"
    flock -n 9
}

if [[ " $*" != *" run_dir="* ]]; then begin_or_go_on; fi
echo "  0:00  reading the config"
exec .venv/bin/online-refiner train experiment=quickstart "platform=$platform" \
    "actor_rollout_ref.model.path=$model" ${run_dir:+"run_dir=$run_dir"} "$@"
