"""The constraints by their names in the config, and what reads one."""

from dataclasses import fields
from typing import Any

from recipe.online_refiner.method.constraint import Constraint
from recipe.online_refiner.method.in_place import InPlace, InPlaceSft
from recipe.online_refiner.method.lagrangian import Lagrangian
from recipe.online_refiner.method.none import Unconstrained
from recipe.online_refiner.method.penalty import Penalty
from recipe.online_refiner.method.sft import Sft
from refiner_worker.keys import nearest, read_keys

CONSTRAINTS: dict[tuple[str, str], type[Constraint]] = {
    ("none", "rewrite"): Unconstrained,
    ("penalty", "rewrite"): Penalty,
    ("penalty", "in_place"): InPlace,
    ("sft", "rewrite"): Sft,
    ("sft", "soft"): Sft,
    ("sft", "in_place"): InPlaceSft,
    ("lagrangian", "rewrite"): Lagrangian,
    ("lagrangian", "soft"): Lagrangian,
}
"""The constraints by mode and target. A new one is a class in a file of its own, and a line here."""


def read_constraint(values: dict[str, Any]) -> Constraint:
    """Return the constraint from the values of the block ``constraint``; null stands for a default.

    Raises:
        ValueError: If there is no such mode, or a key is not one of the mode's.
    """
    given = {key: value for key, value in values.items() if value is not None}
    mode, target = str(given.get("mode")), str(given.get("target", "rewrite"))
    if mode == "none":  # the control of a run: its keys stand, and nothing reads them
        return Unconstrained(mode="none")
    targets = [name for of, name in CONSTRAINTS if of == mode]
    if not targets:
        modes = dict.fromkeys(of for of, _ in CONSTRAINTS)
        raise ValueError(f"constraint.mode={mode}: set one of {', '.join(modes)}{nearest(mode, modes)}")
    if target not in targets:
        meant = nearest(target, targets)
        raise ValueError(
            f"constraint.target={target} is not one of mode {mode}; set one of {', '.join(targets)}{meant}"
        )
    found = CONSTRAINTS[mode, target]
    if "target" not in {field.name for field in fields(found)}:
        given.pop("target", None)
    said = f"constraint.mode={mode}" + (f" with target={target}" if target != "rewrite" else "")
    return read_keys("constraint", found, given, said)
