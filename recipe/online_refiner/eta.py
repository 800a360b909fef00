"""The weight eta of the constraint, from step to step."""

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from recipe.online_refiner.blocks import ConstraintConfig


class Eta:
    """``constraint.eta`` times a function of the share of steps done. Steps count from 1.

    Args:
        config: The block ``constraint``.
        num_steps: Steps of the whole run.
        shape: The function, 1 in the first step.
    """

    def __init__(self, config: ConstraintConfig, num_steps: int, shape: Callable[[float], float]) -> None:
        """Start at ``constraint.eta``."""
        self.config, self.num_steps, self.shape = config, num_steps, shape

    def at(self, step: int) -> float:
        """Return the eta of a step."""
        return self.config.eta * self.shape((step - 1) / self.num_steps)

    def observe(self, *, token: float, rollout: float) -> None:
        """Take note of D of a step whose eta was used, in nats per token and per rollout."""

    def save(self, path: Path) -> None:
        """Write what a resumed run needs and the step does not tell."""

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote."""


class Adaptive(Eta):
    """Dual ascent on Eq. 5, max reward subject to D <= delta: eta is its multiplier. ``divergence_per`` says which D.

    After each step eta <- eta * exp(rate * clip(D / delta - 1, -1, 1)): it grows while the constraint is violated and
    decays while it is slack (the multiplicative form of the dual update, which keeps eta positive and does not depend
    on the unit of D). It stays within a factor of RANGE around ``constraint.eta``.
    """

    RANGE = 1000.0

    def __init__(self, config: ConstraintConfig, num_steps: int) -> None:
        """Start at ``constraint.eta``."""
        self.config, self.value = config, config.eta

    def at(self, step: int) -> float:
        """Return the multiplier."""
        return self.value

    def observe(self, *, token: float, rollout: float) -> None:
        """Make the dual step."""
        assert self.config.delta is not None
        divergence = {"token": token, "rollout": rollout}[self.config.divergence_per]
        if math.isnan(divergence):  # it says nothing
            return
        violation = min(1.0, divergence / self.config.delta - 1)  # D >= 0, so never below -1
        value = self.value * math.exp(self.config.eta_rate * violation)
        self.value = min(max(value, self.config.eta / self.RANGE), self.config.eta * self.RANGE)

    def save(self, path: Path) -> None:
        """Write the multiplier; JSON keeps every bit of a float."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"eta": self.value}), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Read the multiplier; a checkpoint of another schedule has none, and it starts anew."""
        if path.exists():
            self.value = json.loads(path.read_text(encoding="utf-8"))["eta"]


SCHEDULES: dict[str, Callable[[ConstraintConfig, int], Eta]] = {
    "constant": partial(Eta, shape=lambda done: 1.0),
    "linear": partial(Eta, shape=lambda done: 1 - done),
    "cosine": partial(Eta, shape=lambda done: (1 + math.cos(math.pi * done)) / 2),
    "adaptive": Adaptive,
}
