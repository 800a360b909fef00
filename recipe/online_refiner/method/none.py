"""Mode ``none``: verl's own step."""

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from recipe.online_refiner.method.constraint import Constraint
from refiner_worker.keys import BLOCK


@dataclass(kw_only=True, config=BLOCK)
class Unconstrained(Constraint):
    """verl's own step: nothing is refined."""

    refines: ClassVar[bool] = False

    mode: Literal["none"]
