#!/usr/bin/env bash
# Run presets' small twins for 2 steps each on this machine's CPU:  bash experiments/run_twins.sh [PRESET...]
# Without arguments all of them, five to ten minutes each. Ends with status 1 if any of them failed.
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
python=.venv/bin/python
data=runs/data
model=$("$python" scripts/get_smollm2.py)
reward_model=$("$python" scripts/get_smollm2.py --reward-model)
prepare() { # FOLDER SOURCE [OPTIONS]
    local folder=$data/$1
    shift
    if [ ! -f "$folder/train.parquet" ]; then .venv/bin/online-refiner prepare "$@" --output "$folder"; fi
}
if [ $# = 0 ]; then
    for file in recipe/online_refiner/config/experiment/*.yaml; do
        preset=$(basename "$file" .yaml)
        # reasoning-gym is an optional package.
        if [ "$preset" = reasoning_gym ] && ! "$python" -c "import reasoning_gym" 2>/dev/null; then continue; fi
        if [ "$preset" = geo3k_grpo ]; then continue; fi # it has images
        set -- "$@" "$preset"
    done
fi
folder=runs/twins-$(date +%Y%m%d-%H%M%S)
mkdir -p "$folder"
failed=0
for preset in "$@"; do
    twin=cpu
    case $preset in
        *_megatron) twin=cpu_megatron ;;
        gsm8k_grpo | math_dapo) twin=math; prepare word_problems gsm8k --generated 200 ;;
        reasoning_gym) twin=puzzles; prepare reasoning_gym_easy reasoning-gym --tasks chain_sum,decimal_chain_sum --number 100 ;;
    esac
    if .venv/bin/online-refiner train "experiment=$preset" "twin=$twin" "actor_rollout_ref.model.path=$model" \
        "reward.reward_model.model_path=$reward_model" "run_dir=$folder/$preset" >"$folder/$preset.log" 2>&1 && [ "$(wc -l <"$folder/$preset/metrics.jsonl")" = 2 ]; then
        echo "$preset: 2 steps done"
    else
        echo "$preset: FAILED, see $folder/$preset.log"
        failed=1
    fi
done
exit $failed
