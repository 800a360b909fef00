#!/usr/bin/env bash
# The sum of a nested view that was cut to the responses counts the prompts too, and so does its gradient.
#
# Version:   torch 2.13.0
# Guessed:   torch.nested.narrow(values, 1, start, length) holds rows start to start + length, so its sum and mean are
#            those of these rows; what the jagged layout cannot do on such a view raises, as sum(dim=1) does.
# Behaviour: the view keeps the whole buffer and the rows' lengths. sum(), mean(), min(), max(), any() and all() over
#            everything hand that buffer on and do not look at the lengths. With log-probs of prompts and responses, a
#            loss that is such a sum trains on the prompts. Take torch.cat(view.unbind()) first, or view.contiguous()
#            where no gradient is asked.
# Source:    torch/nested/_internal/ops.py, sum_default, mean_default, all_any_max_min_default: they accept a view with
#            holes and reduce inp._values. Public report of another function on such views: issue 196708 of PyTorch
# Seen:      of 1 to 12 in two rows, cut to 3, 4, 5 and 8 to 12: the sum is 78 and not 62, the mean 6.5 and not 7.75,
#            the smallest 1 and not 3; the gradient is 1 at all twelve; sum(dim=1) is refused
set -euo pipefail
bash "$(dirname "$0")/with_packages.sh" torch==2.13.0 numpy==2.3.5 <<'EOF'
import torch

values = torch.arange(1.0, 13.0).reshape(2, 6).requires_grad_()
start, length = torch.tensor([2, 1]), torch.tensor([3, 5])
view = torch.nested.narrow(values, 1, start, length, layout=torch.jagged)
rows = torch.cat(view.unbind())
print("rows", [row.tolist() for row in view.unbind()])
assert rows.tolist() == [3, 4, 5, 8, 9, 10, 11, 12]

for name, of_rows, of_all in [("sum", 62, 78), ("mean", 7.75, 6.5), ("min", 3, 1)]:
    found = getattr(view, name)().item()
    print(f"{name}: {found}, of the rows {getattr(rows, name)().item()}")
    assert (getattr(rows, name)().item(), found) == (of_rows, of_all)
[gradient] = torch.autograd.grad(view.sum(), values)
print("gradient of the sum", gradient.tolist())
assert gradient.eq(1).all(), "what was left out has no gradient"
try:
    view.sum(dim=1)
except RuntimeError as refusal:
    print("sum(dim=1):", refusal)
else:
    raise AssertionError("sum(dim=1) is not refused")
EOF
