#!/usr/bin/env bash
# verl's DAPO filter keeps a group of six responses that all have the score 0.2.
#
# Version:   verl 0.9.1 with numpy 2.3.5
# Guessed:   algorithm.filter_groups takes out every group whose responses have one score: no advantage is left in it.
# Behaviour: it asks for numpy.std(scores) == 0.0. The mean of six times 0.2 is not quite 0.2, so std is 2.8e-17 and
#            the group stays. It depends on the score (0.5 is exact), on the group's size (8 is exact), and on the
#            metric: `reward` is read back from float32, whose values have bits to spare, and the same group is taken
#            out.
# Source:    verl/trainer/ppo/v1/replay_buffer.py, ReplayBuffer._dapo_filtered_keys
# Seen:      metric=score: six times 0.5 and eight times 0.2 are filtered, six times 0.2 is not; metric=reward: all
#            three
set -euo pipefail
# The last six are imported by verl and not asked for by its package.
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 transferqueue==0.1.11 ray==2.60.0 numpy==2.3.5 \
    cachetools==7.3.3 fastapi==0.136.3 msgspec==0.22.0 openai==3.54.0 pyzmq==27.3.0 uvicorn==0.54.0 <<'EOF'
import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

GROUPS = {"exact": (6, 0.5), "eight": (8, 0.2), "six": (6, 0.2)}
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
for uid, (num, score) in GROUPS.items():
    print(f"{uid}: standard deviation {np.std([score] * num)}")
    extras = NonTensorStack(*[NonTensorData({"reward_extra_info": {"score": score}}) for _ in range(num)])
    fields = TensorDict({"rm_scores": torch.tensor([[0.0, score]] * num), "extra_fields": extras}, batch_size=num)
    keys = [f"{uid}_{session}_0" for session in range(num)]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=fields, tags=[{"status": "success"}] * num)
    prompt, tag = TensorDict({"any": torch.ones(1)}, batch_size=1), {"is_prompt": True, "status": "finished"}
    tq.kv_batch_put(keys=[uid], partition_id="train", fields=prompt, tags=[tag | {"global_steps": 0}])


def filtered(metric):
    nothing, options = OmegaConf.create({}), {"filter_groups_metric": metric, "refill_fn": print}
    buffer = ReplayBuffer("sync", nothing, None, "drop", nothing, **options)
    buffer._sync_metadata_from_transfer_queue()
    found, _ = buffer._dapo_filtered_keys("train")
    print(f"metric={metric}: {sorted(found)}")
    return found


assert filtered("reward") == {"exact", "eight", "six"}
assert filtered("score") == {"exact", "eight"}
tq.close()
ray.shutdown()
EOF
