"""The lab's problems: mini_apps families with more values of their numbers; held-out ones differ in the values."""

from dataclasses import dataclass, replace

from recipe.mini_apps.family import Family
from recipe.mini_apps.generator import FAMILIES, MiniProblem, generate_family

VALUES = range(2, 40)
"""What every number of a question is drawn from."""
FAMILY_NAMES = (
    *("add_constant", "multiply_constant", "linear", "remainder", "divisible", "power", "at_least", "weighted_sum"),
    *("sum_and_add", "read_and_add"),
    *(
        "sum_divisible",
        "digit_sum_times",
        "pair_difference",
    ),  # of level medium: the base model is seldom shown a right answer
)
NUM_PER_FAMILY = 36
NUM_HELD_OUT_PER_FAMILY = 6


@dataclass(slots=True, kw_only=True, frozen=True)
class LabProblems:
    """Problems by split; neither base model nor training sees a held-out one."""

    train: list[MiniProblem]
    held_out: list[MiniProblem]


def widen(family: Family) -> Family:
    """Return a family whose numbers are drawn from `VALUES`."""
    values = {name: VALUES if isinstance(choices, range) else choices for name, choices in family.values.items()}
    return replace(family, values=values)


def lab_problems(seed: int = 0) -> LabProblems:
    """Generate the lab's 468 problems, one in six of them held out; the same seed gives the same ones."""
    problems = [
        generate_family(widen(family), seed, NUM_PER_FAMILY) for family in FAMILIES if family.name in FAMILY_NAMES
    ]
    return LabProblems(
        train=[problem for family in problems for problem in family[NUM_HELD_OUT_PER_FAMILY:]],
        held_out=[problem for family in problems for problem in family[:NUM_HELD_OUT_PER_FAMILY]],
    )
