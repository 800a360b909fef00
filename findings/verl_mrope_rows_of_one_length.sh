#!/usr/bin/env bash
# verl fails on a batch with M-RoPE whose rows have one length, such as a single row.
#
# Version:   verl 0.9.1 with torch 2.13.0
# Guessed:   how long the rows of a rank are makes no difference.
# Behaviour: each row has positions of shape (4, length). as_nested_tensor, by which the TransferQueue packs rows, lays
#            rows of different lengths side by side (4, total), but rows of one length one below the other (4 * rows,
#            length). maybe_fix_3d_position_ids declares every batch to be of the first kind, and the next selection of
#            rows, as into mini-batches, splits the second kind along the wrong dimension.
# Source:    verl/utils/tensordict_utils.py, maybe_fix_3d_position_ids and index_select_tensor_dict
# Seen:      rows of 3 and 2 tokens are selected as they are; two rows of 3 tokens, or one, end in a RuntimeError
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" verl==0.9.1 torch==2.13.0 <<'EOF'
import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu


def selected(*lengths: int) -> str:
    rows = [torch.arange(length).expand(4, -1).contiguous() for length in lengths]
    positions = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = TensorDict({"position_ids": positions}, batch_size=[len(rows)])
    tu.maybe_fix_3d_position_ids(data)
    try:
        last = tu.index_select_tensor_dict(data, [len(rows) - 1])["position_ids"]
    except RuntimeError:
        return "RuntimeError"
    return str([row.tolist() == rows[-1].tolist() for row in last.unbind()])


found = {lengths: selected(*lengths) for lengths in ((3, 2), (3, 3), (3,))}
print(found)
assert found == {(3, 2): "[True]", (3, 3): "RuntimeError", (3,): "RuntimeError"}
EOF
