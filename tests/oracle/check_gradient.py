"""Compare what each mode of the constraint follows with the gradient of -E[D], in worlds that can be enumerated.

    python tests/oracle/check_gradient.py [--worlds 16] [--trap]

A policy over all 121 responses of a small vocabulary, a refiner that mends, spoils or repeats, and the functions of a
real step: the expected update of a mode has a cosine with the exact gradient (autograd of -E[D], Eq. 6; `in_place`
and `soft`: of what docs/constraint.md says that they follow). The last line is a JSON object with the lowest cosine
over the worlds of each mode, and the mean. The exit status is 1 unless those of `lagrangian`, `in_place` and `soft` are
above 0.99. `--trap` shows first (two minutes) where modes and credits end in six worlds in which the empty answer is
the cheapest one.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[2] / "examples" / "own_constraint"))

from worlds import ascend, constraint, expected_update, make_world

from recipe.online_refiner.method import eq6
from recipe.online_refiner.method.constraint import Constraint

MODES = {  # the three modes, `lagrangian` with one of its parts exchanged, in place, and examples/own_constraint
    "lagrangian": constraint("lagrangian"),
    "lagrangian_diff": constraint("lagrangian", alignment="diff"),
    "lagrangian_return_to_go": constraint("lagrangian", credit="return_to_go"),
    "lagrangian_accepted": constraint("lagrangian", sft_normaliser="accepted"),
    "penalty": constraint("penalty"),
    "sft": constraint("sft"),
    "in_place": constraint("penalty", target="in_place"),
    "soft": constraint("soft:Soft"),
}
TRAPPED = {
    **{f"penalty_{name}": constraint("penalty", credit=name) for name in ("return_to_go", "in_reward")},
    "lagrangian": constraint("lagrangian"),
    "lagrangian_in_reward": constraint("lagrangian", credit="in_reward"),
    "sft_batch": constraint("sft", sft_normaliser="batch"),
}


def cosines(seed: int) -> dict[str, float]:
    """Return the cosine of each mode's expected update with the exact gradient of -E[D] in one world."""
    world, found = make_world(seed), {}
    parameters = world.parameters.clone().requires_grad_()
    truths = {
        name: torch.autograd.grad(-world.divergence(parameters, name), parameters)[0].flatten()
        for name in eq6.ALIGNMENTS
    }
    for name, loss in {"in_place": world.in_place_loss, "soft": world.soft_loss}.items():
        truths[name] = torch.autograd.grad(-loss(parameters), parameters)[0].flatten()
    for name, mode in MODES.items():
        update = expected_update(world, parameters, mode, eta=1.0, is_rewarded=False).flatten()
        truth = truths[name if name in truths else getattr(mode, "alignment", "position")]
        found[name] = torch.nn.functional.cosine_similarity(update, truth, dim=0).item()
    return found


def show_trap() -> None:
    """Print in how many worlds training ends with no less reward than without a constraint, to 0.01."""
    worlds = [make_world(seed, improves=0.9, worsens=0.0) for seed in range(6)]

    def rewards(mode: Constraint, eta: float) -> list[float]:
        ends = [ascend(world, mode, eta=eta, rate=400.0, num_steps=20) for world in worlds]
        return [world.reward(end).item() for world, end in zip(worlds, ends, strict=True)]

    own = rewards(constraint("none"), 0.0)
    for name, mode in TRAPPED.items():
        for eta in (1.0, 3.0):
            found = rewards(mode, eta)
            kept = sum(value > free - 0.01 for value, free in zip(found, own, strict=True))
            print(f"{name:24} eta {eta:.0f}: {kept} of {len(worlds)}  {' '.join(f'{value:6.3f}' for value in found)}")
    print(f"{'none':24} {'':14}  {' '.join(f'{value:6.3f}' for value in own)}")


def main() -> None:
    """Print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=16)
    parser.add_argument("--trap", action="store_true")
    arguments = parser.parse_args()
    if arguments.trap:
        show_trap()
    worlds = [cosines(seed) for seed in range(arguments.worlds)]
    print(f"{'mode':24} {'lowest':>8} {'mean':>8} {'against it in':>14} of {len(worlds)} worlds")
    for name in MODES:
        values = [world[name] for world in worlds]
        against = sum(value < 0 for value in values)
        print(f"{name:24} {min(values):8.4f} {statistics.mean(values):8.4f} {against:14}")
    lowest = {name: round(min(world[name] for world in worlds), 6) for name in MODES}
    mean = {name: round(statistics.mean(world[name] for world in worlds), 6) for name in MODES}
    print(json.dumps({**lowest, "mean": mean, "num_worlds": len(worlds)}))
    sys.exit(int(min(lowest[name] for name in ("lagrangian", "in_place", "soft")) <= 0.99))


if __name__ == "__main__":
    main()
