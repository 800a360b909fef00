"""The reward of a reasoning-gym puzzle (docs/math.md): the points in [0, 1] that the task's own scorer gives."""

from dataclasses import dataclass
from functools import partial

from reward.grading import Graded, require, row_check, verl_function
from reward.judge import ask
from reward.judge.puzzles import grade_puzzle, load
from reward.limits import Limits
from reward.problem import read_json

FORGEABLE = {
    "game_of_life_halting": "any text",
    "complex_arithmetic": "nan",
    "coin_flip": "0",
    "gsm_symbolic": "the answer with another sign",
    "puzzle24": "four numbers of any kind",
}
"""Tasks whose scorers (in reasoning-gym 0.1.25) give full points to a wrong answer, and that answer."""


@dataclass(slots=True, kw_only=True, frozen=True)
class Puzzle(Graded):
    """A puzzle of reasoning-gym; build it with `from_ground_truth`, which checks it."""

    @classmethod
    def from_ground_truth(cls, ground_truth: object, *, problem_id: object) -> "Puzzle":
        """Check JSON text of `task` (its name), `config` (of its data set) and `entry` (what that generated).

        Raises ValueError if the text is something else, or reasoning-gym is not installed.
        """
        require("reasoning_gym", "reasoning-gym")
        where = f"problem {problem_id}: reward_model.ground_truth"
        fields = read_json(ground_truth, where) if isinstance(ground_truth, str) else None
        kinds = {"task": str, "config": dict, "entry": dict}
        if not isinstance(fields, dict) or not all(isinstance(fields.get(key), kinds[key]) for key in kinds):
            raise ValueError(f"{where} is no puzzle: make the data with online-refiner prepare reasoning-gym")
        if what := FORGEABLE.get(fields["task"]):
            raise ValueError(
                f"problem {problem_id}: reasoning-gym's scorer of {fields['task']} gives full points to {what}: "
                "leave that task out"
            )
        return cls(problem_id=str(problem_id), ground_truth=str(ground_truth))

    def ask(self, response: str, limits: Limits) -> tuple[str, float, str]:
        """See `Graded.ask`."""
        question = partial(grade_puzzle, self.ground_truth, response)
        return ask(question, load=partial(load, self.ground_truth), limits=limits).value


compute_score = verl_function(Puzzle.from_ground_truth)
validate_row = row_check(Puzzle.from_ground_truth)
