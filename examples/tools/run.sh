#!/usr/bin/env bash
# verl's tool agent with a calculator on two CPU cores. Any override may follow.
set -euo pipefail
cd "$(dirname "$0")/../.."
bash scripts/setup.sh
python=.venv/bin/python here=examples/tools data=runs/examples/data/products.parquet
model=$("$python" scripts/get_smollm2.py)
mkdir -p "$(dirname "$data")"
"$python" $here/calculator.py "$data"
exec .venv/bin/online-refiner train twin=cpu "actor_rollout_ref.model.path=$model" \
    "data.train_files=$data" "data.val_files=$data" actor_rollout_ref.rollout.n=4 \
    data.max_prompt_length=256 data.max_response_length=96 actor_rollout_ref.rollout.max_model_len=512 \
    actor_rollout_ref.rollout.agent.default_agent_loop=tool_agent \
    actor_rollout_ref.rollout.multi_turn.function_tool_path=$here/calculator.py \
    actor_rollout_ref.rollout.multi_turn.max_assistant_turns=3 \
    reward.custom_reward_function.path=pkg://reward.math reward.custom_reward_function.name=compute_score \
    refiner.template=math refiner.skip_reward_at_least=1.0 run_dir=runs/examples/tools trainer.resume_mode=disable "$@"
