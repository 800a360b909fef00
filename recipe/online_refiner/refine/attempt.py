"""The values of the refine stage: a response that is being refined, and what the refiner has written for it."""

from collections.abc import Callable
from dataclasses import dataclass

from recipe.online_refiner.method.pairs import Rollout
from recipe.online_refiner.refine.language import Language
from refiner_worker.pictures import Prompt
from refiner_worker.text.answer import Answer
from refiner_worker.text.thoughts import Parts


@dataclass(slots=True, frozen=True, kw_only=True)
class Written:
    """One sample that the refiner has written: by a replica, or by a server and encoded in the policy's tokens.

    Each part ends with what ended it: a token that ends a turn, or the stop text. A part that was cut has no such end.
    """

    answer: list[int]
    """The token ids of the answer."""
    thought: list[int] | None = None
    """The token ids of the response's thought, written anew; None unless the shape asks for it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Shape:
    """How a' is put together. It is chosen once for each response, in ``assemble.shape_of``."""

    assemble: "Callable[[Language, Attempt, Written], Answer]"
    """The function that puts a' together from what was written."""
    head: list[int]
    """The tokens of the response's own thought with its marks, with which a' begins; empty if it begins with none."""
    stop: str | None
    """The text at which the answer ends; None: it ends where the refiner ends it."""
    writes_thought: bool
    """Whether the refiner also writes the response's thought anew, before the answer."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Attempt:
    """A response that is being refined: all that is known of it before the refiner is asked."""

    rollout: Rollout
    parts: Parts
    """The parts of the rollout's last turn."""
    shape: Shape
    told: dict[str, str]
    """The texts of ``refiner.context`` that the prompt shows, by name."""
    words: str
    """The prompt as the words of one user message, which servers by URL read."""
    prompt: Prompt
    """The prompt as replicas read it."""
    num_left: int
    """The most tokens that may be written behind ``shape.head``: the answer, and a thought that is written anew."""
    longest_thought: int
    """The most tokens of the refiner's own thought, which is no part of a'."""

    @property
    def most_tokens(self) -> int:
        """The most tokens of a'."""
        return len(self.shape.head) + self.num_left
