#!/usr/bin/env bash
# With bypass_mode=true verl's trainer drops what else rollout_correction says: the loss is plain PPO's.
#
# Version:   verl 0.9.1, the trainer v1 (PPOTrainerSync)
# Guessed:   algorithm.rollout_correction is one block. Its doc string says that bypass mode uses
#            compute_policy_loss_bypass_mode with the loss_type that is set, and names presets of it, such as REINFORCE
#            with truncated importance sampling. So loss_type, rollout_is and rollout_rs act, or are refused.
# Behaviour: the trainer reads bypass_mode alone: it takes the rollout's log-probs for the old ones, and skips weights and
#            rejection because the actor shall compute them. The actor's loss_mode stays vanilla, and it has no
#            rollout_correction to read. No word is said, and no rollout_corr metric is there. It acts only if
#            actor.policy_loss.loss_mode=bypass_mode and actor.policy_loss.rollout_correction are set by hand.
# Source:    verl/trainer/ppo/v1/trainer_base.py, _compute_old_log_prob and _compute_advantage;
#            verl/trainer/config/algorithm.py, RolloutCorrectionConfig; verl/workers/utils/losses.py, ppo_loss
# Seen:      the loss of two responses is 0.5082 with bypass_mode alone, with loss_type=reinforce, with rollout_is=token
#            and with rollout_rs=token_k1; set by hand in the actor it is -0.2731
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 transferqueue==0.1.11 ray==2.60.0 hydra-core==1.3.8 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

KEYS = ["prompt_0_0", "prompt_1_0"]  # two responses to one prompt, of two tokens each


def jagged(rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


ROLLOUT, NOW = jagged([[0.8, 0.8], [0.2, 0.2]]).log(), jagged([[0.1, 0.8], [0.2, 0.8]]).log()
rows = {"rollout_log_probs": ROLLOUT, "rm_scores": jagged([[0.0, 1.0], [0.0, 0.0]])}
rows |= {"response_mask": jagged([[1.0, 1.0]] * 2), "uid": NonTensorStack(*[NonTensorData("prompt")] * 2)}
answers = {"prompts": jagged([[1]] * 2), "responses": jagged([[1, 1]] * 2), "input_ids": jagged([[1, 1, 1]] * 2)}


def loss(*overrides):
    """The actor's loss after the trainer's own steps before it."""
    micro = ["actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*micro, "algorithm.adv_estimator=grpo", *overrides])
    trainer = object.__new__(PPOTrainerSync)
    trainer.config = config
    batch = tq.kv_batch_put(keys=KEYS, partition_id="train", fields=TensorDict(rows, batch_size=2))
    batch = KVBatchMeta(keys=KEYS, tags=[{}] * 2, partition_id="train")
    batch = trainer._compute_advantage(trainer._compute_old_log_prob(batch, {}), {})
    data = tq.kv_batch_get(keys=KEYS, partition_id="train")
    sizes = {"dp_size": 1, "batch_num_tokens": 4, "global_batch_size": 2}
    read = {name: data[name] for name in ("advantages", "old_log_probs", "response_mask")}
    data = tu.get_tensordict({**read, **answers}, sizes)
    # An engine gives a value for each token of the sequence, that of the token after it.
    shifted = jagged([[*row.tolist(), 0.0] for row in NOW.unbind()])
    found, metrics = ppo_loss(omega_conf_to_dataclass(config.actor_rollout_ref.actor), {"log_probs": shifted}, data)
    print(overrides, found.item(), sorted(metrics))
    return round(found.item(), 4), any("rollout_corr" in name for name in metrics)


ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
KEY, OWN = "algorithm.rollout_correction", "actor_rollout_ref.actor.policy_loss"
BYPASS = f"{KEY}.bypass_mode=true"
names = "{_target_:verl.trainer.config.algorithm.RolloutCorrectionConfig,rollout_is:token,loss_type:reinforce}"
try:
    plain = loss(BYPASS)
    dropped = [
        loss(BYPASS, f"{KEY}.loss_type=reinforce"),
        loss(BYPASS, f"{KEY}.loss_type=reinforce", f"{KEY}.rollout_is=token"),
        loss(BYPASS, f"{KEY}.rollout_rs=token_k1", f"{KEY}.rollout_rs_threshold=2.0"),
    ]
    by_hand = loss(BYPASS, f"{OWN}.loss_mode=bypass_mode", f"+{OWN}.rollout_correction={names}")
finally:
    tq.close()
    ray.shutdown()
assert dropped == [plain] * 3 == [(0.5082, False)] * 3
assert by_hand == (-0.2731, True)
EOF
