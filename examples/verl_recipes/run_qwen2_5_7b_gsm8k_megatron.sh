#!/usr/bin/env bash
# Qwen2.5-7B-Instruct on GSM8K: GRPO with Megatron on 8 GPUs. Any override may follow.
set -euo pipefail
model=${MODEL:-Qwen/Qwen2.5-7B-Instruct} data=${DATA:-$HOME/data/gsm8k}

verl=( # as for python -m verl.trainer.main_ppo
    "actor_rollout_ref.model.path=$model"
    "data.train_files=$data/train.parquet"
    "data.val_files=$data/test.parquet"
    model_engine=megatron
    algorithm.adv_estimator=grpo
    data.train_batch_size=256
    data.max_prompt_length=512
    data.max_response_length=1024
    data.filter_overlong_prompts=true
    data.truncation=error
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=1
    actor_rollout_ref.actor.megatron.param_offload=true
    actor_rollout_ref.actor.megatron.optimizer_offload=true
    actor_rollout_ref.actor.ppo_mini_batch_size=64
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=4
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    actor_rollout_ref.rollout.n=5
    trainer.n_gpus_per_node=8
    trainer.nnodes=1
    trainer.save_freq=20
    trainer.test_freq=5
    trainer.total_epochs=15
    trainer.experiment_name=qwen2_5_7b_gsm8k_megatron
)
refiner=( # what the refiner adds
    constraint.mode=sft
    constraint.eta=0.03
    refiner.template=math
    refiner.skip_reward_at_least=1.0
)
exec online-refiner train "${verl[@]}" "${refiner[@]}" "$@"
