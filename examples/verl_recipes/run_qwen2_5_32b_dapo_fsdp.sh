#!/usr/bin/env bash
# Qwen2.5-32B on DAPO-Math-17k: DAPO with FSDP on 4 nodes of 8 GPUs, and a refiner on a fifth node. Any override may
# follow.
set -euo pipefail
model=${MODEL:-Qwen/Qwen2.5-32B} data=${DATA:-$HOME/data/dapo}

verl=( # as for python -m verl.trainer.main_ppo
    "actor_rollout_ref.model.path=$model"
    "data.train_files=$data/dapo-math-17k.parquet"
    "data.val_files=$data/aime-2024.parquet"
    algorithm.adv_estimator=grpo
    'algorithm.filter_groups={enable: true, metric: reward}'
    data.train_batch_size=512
    data.max_prompt_length=2048
    data.max_response_length=8192
    data.filter_overlong_prompts=true
    data.truncation=left
    actor_rollout_ref.actor.clip_ratio_low=0.2
    actor_rollout_ref.actor.clip_ratio_high=0.28
    actor_rollout_ref.actor.clip_ratio_c=10.0
    actor_rollout_ref.actor.loss_agg_mode=token-mean
    reward.reward_manager.name=dapo
    '+reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 4096, penalty_factor: 1.0, log: false}'
    +reward.reward_kwargs.max_resp_len=8192
    actor_rollout_ref.model.use_remove_padding=true
    actor_rollout_ref.model.enable_gradient_checkpointing=true
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size=4
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.use_dynamic_bsz=true
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=16384
    actor_rollout_ref.actor.fsdp_config.param_offload=true
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.tensor_model_parallel_size=4
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6
    actor_rollout_ref.rollout.n=8
    trainer.n_gpus_per_node=8
    trainer.nnodes=4
    trainer.save_freq=20
    trainer.test_freq=5
    trainer.total_epochs=15
    trainer.experiment_name=qwen2_5_32b_dapo
)
refiner=( # what the refiner adds
    constraint.mode=sft
    constraint.eta=0.03
    refiner.template=math
    refiner.skip_reward_at_least=1.0
    constraint.rescue_dead_groups=true
    refiner.placement=dedicated
    refiner.n_gpus_per_node=8
)
exec online-refiner train "${verl[@]}" "${refiner[@]}" "$@"
