#!/usr/bin/env bash
# TransferQueue leaves out a field that one of the asked rows lacks, and says nothing.
#
# Version:   TransferQueue 0.1.11
# Guessed:   select_fields=["ids", "score"] returns both or raises: the doc string of kv_batch_get promises a
#            ValueError for fields that are empty in any row.
# Behaviour: if one row has no `score`, the answer for all rows has no `score`. Asked for `score` alone, the answer is
#            an empty TensorDict. A misspelt name is left out likewise.
# Source:    transfer_queue/interface.py, async_kv_batch_get (BatchMeta.select_fields of what all rows have)
# Seen:      {ids} for select_fields=["ids", "score"]; {} for ["score"]; {ids, score} for the row that has both
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" transferqueue==0.1.11 torch==2.13.0 ray==2.60.0 tensordict==0.10.0 <<'EOF'
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tensordict import TensorDict

ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))


def put(keys, **fields):
    tq.kv_batch_put(keys=keys, partition_id="rows", fields=TensorDict(fields, batch_size=len(keys)))


def names(keys, *wanted):
    found = set(tq.kv_batch_get(keys=keys, partition_id="rows", select_fields=list(wanted)).keys())
    print(f"{wanted} of {keys}: {found or 'nothing'}")
    return found


put(["a", "b"], ids=torch.tensor([1, 2]))
put(["a"], score=torch.tensor([0.5]))
assert names(["a"], "ids", "score") == {"ids", "score"}
assert names(["a", "b"], "ids", "score") == {"ids"}
assert names(["a", "b"], "score") == set()
assert names(["a", "b"], "ids", "scoer") == {"ids"}
tq.close()
ray.shutdown()
EOF
