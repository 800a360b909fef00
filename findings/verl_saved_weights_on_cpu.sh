#!/usr/bin/env bash
# Weights that verl puts aside "to the CPU" go on training if the model is on the CPU.
#
# Version:   verl 0.9.1 with torch 2.13.0
# Guessed:   fsdp2_sharded_save_to_cpu returns a copy, which fsdp2_sharded_load_from_cpu brings back later.
# Behaviour: it takes detach().cpu() of each shard. That copies from a GPU and copies nothing on a CPU, so the saved
#            state is the model's own memory: an optimizer step changes it, and the restore restores nothing.
# Source:    verl/utils/fsdp_utils.py, fsdp2_sharded_save_to_cpu
# Seen:      saved at 1.0; after one step of SGD the saved tensor is 0.5, and after the restore the model is 0.5
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 <<'EOF'
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.utils.fsdp_utils import fsdp2_sharded_load_from_cpu, fsdp2_sharded_save_to_cpu

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.Linear(2, 2, bias=False)
torch.nn.init.ones_(model.weight)
fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
saved, spec = fsdp2_sharded_save_to_cpu(model)
shard, _ = saved["weight"]
print("saved", shard.tolist())
assert shard.eq(1.0).all()

optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
print("the saved shard after a step", shard.tolist())
assert shard.eq(0.5).all()

fsdp2_sharded_load_from_cpu(model, saved, spec)
restored = model.weight.to_local()
print("the model after the restore", restored.tolist())
assert restored.eq(0.5).all()
dist.destroy_process_group()
EOF
