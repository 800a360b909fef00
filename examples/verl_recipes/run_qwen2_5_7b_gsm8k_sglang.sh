#!/usr/bin/env bash
# Qwen2.5-7B-Instruct on GSM8K: the policy rolls out on SGLang, and the refiner is a server by URL. Any override may
# follow.
set -euo pipefail
model=${MODEL:-Qwen/Qwen2.5-7B-Instruct} data=${DATA:-$HOME/data/gsm8k}
url=${REFINER_URL:-http://localhost:8000/v1} # vllm serve Qwen/Qwen2.5-7B-Instruct --generation-config vllm

verl=( # as for python -m verl.trainer.main_ppo
    "actor_rollout_ref.model.path=$model"
    "data.train_files=$data/train.parquet"
    "data.val_files=$data/test.parquet"
    algorithm.adv_estimator=grpo
    data.train_batch_size=1024
    data.max_prompt_length=512
    data.max_response_length=1024
    data.filter_overlong_prompts=true
    data.truncation=error
    actor_rollout_ref.model.use_remove_padding=true
    actor_rollout_ref.model.enable_gradient_checkpointing=true
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=256
    actor_rollout_ref.actor.use_dynamic_bsz=true
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384
    actor_rollout_ref.rollout.name=sglang
    actor_rollout_ref.rollout.tensor_model_parallel_size=2
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6
    actor_rollout_ref.rollout.n=5
    actor_rollout_ref.actor.fsdp_config.param_offload=true
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
    trainer.n_gpus_per_node=8
    trainer.nnodes=1
    trainer.save_freq=20
    trainer.test_freq=5
    trainer.total_epochs=15
    trainer.experiment_name=qwen2_5_7b_gsm8k_sglang
)
refiner=( # what the refiner adds
    refiner.placement=external
    "refiner.url=$url"
    constraint.mode=sft
    constraint.eta=0.03
    refiner.template=math
    refiner.skip_reward_at_least=1.0
)
exec online-refiner train "${verl[@]}" "${refiner[@]}" "$@"
