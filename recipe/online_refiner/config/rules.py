"""What a rule is: something that a run has to keep before Ray starts.

A rule is a function of a :class:`Run`. It returns None, or one line for the user: what is wrong, and which key to set.
The line ends with the rule's id, its name with hyphens, which tests and the docs use. The first broken rule is shown.
Rules on the config alone are in ``checks.py``, others in ``recipe/preflight``; each has a case in a test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from omegaconf import DictConfig

from recipe.online_refiner.config.fields import RefinementConfig

if TYPE_CHECKING:  # they import torch and verl
    from recipe.online_refiner.plan import Plan
    from recipe.preflight.files import Files


@dataclass(kw_only=True)
class Run:
    """A run before it starts; whoever checks its files or sizes has set them."""

    config: DictConfig
    """The whole config, composed."""
    blocks: RefinementConfig
    """This extension's part of it."""
    files: "Files" = field(init=False)
    """Models, data and machine."""
    plan: "Plan" = field(init=False)
    """Sizes of the refiner."""


Kind = Literal["config", "machine", "files", "sizes"]
"""What a rule needs: the config alone, the machine, files of models and data, or the refiner's sizes."""
Rule = Callable[[Run], str | None]
RULES: dict[Kind, list[Rule]] = {"config": [], "machine": [], "files": [], "sizes": []}


def rule(needs: Kind) -> Callable[[Rule], Rule]:
    """Put a function among the rules."""

    def added(one: Rule) -> Rule:
        RULES[needs].append(one)
        return one

    return added


def check(run: Run, needs: Kind) -> None:
    """Check a run by the rules of one kind.

    Raises:
        ValueError: The first broken rule's line.
    """
    for one in RULES[needs]:
        try:
            sentence = one(run)
        except ValueError as error:  # of what it reads
            raise ValueError(f"{error} [{rule_id(one)}]") from error
        if sentence:
            raise ValueError(f"{sentence} [{rule_id(one)}]")


def rule_id(one: Rule) -> str:
    """Return a rule's id: ``dedicated-refiner-has-gpus``."""
    return one.__name__.replace("_", "-")
