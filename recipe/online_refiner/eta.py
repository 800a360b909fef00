"""The weight eta of the constraint, from step to step."""

import json
import math
from pathlib import Path

from recipe.online_refiner.blocks import ConstraintConfig


class Eta:
    """The same weight in every step. Steps count from 1.

    Args:
        config: The block ``constraint``.
        num_steps: Steps of the whole run.
    """

    def __init__(self, config: ConstraintConfig, num_steps: int) -> None:
        """Start at ``constraint.eta``."""
        self.config = config
        self.num_steps = num_steps

    def at(self, step: int) -> float:
        """Return the eta of a step."""
        return self.config.eta

    def observe(self, divergence: float) -> None:
        """Take note of D (nats per rollout, ``constraint.divergence``) of a step whose eta was used."""

    def save(self, path: Path) -> None:
        """Write what a resumed run needs and the step does not tell."""

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote."""


class Linear(Eta):
    """From ``constraint.eta`` in the first step towards 0 after the last."""

    def at(self, step: int) -> float:
        """Return eta * (1 - share of steps done)."""
        return self.config.eta * (1 - (step - 1) / self.num_steps)


class Cosine(Eta):
    """From ``constraint.eta`` in the first step towards 0 after the last, along half a cosine."""

    def at(self, step: int) -> float:
        """Return eta * (1 + cos(pi * share of steps done)) / 2."""
        return self.config.eta * (1 + math.cos(math.pi * (step - 1) / self.num_steps)) / 2


class Adaptive(Eta):
    """Dual ascent on Eq. 5, max reward subject to D <= delta: eta is its Lagrange multiplier.

    After each step eta <- eta * exp(rate * clip(D / delta - 1, -1, 1)): it grows while the constraint is violated and
    decays while it is slack (the multiplicative form of the dual update, which keeps eta positive and does not depend
    on the unit of D). It stays within a factor of RANGE around ``constraint.eta``.
    """

    RANGE = 1000.0

    def __init__(self, config: ConstraintConfig, num_steps: int) -> None:
        """Start at ``constraint.eta``."""
        super().__init__(config, num_steps)
        self.value = config.eta

    def at(self, step: int) -> float:
        """Return the multiplier."""
        return self.value

    def observe(self, divergence: float) -> None:
        """Make the dual step."""
        assert self.config.delta is not None
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


SCHEDULES: dict[str, type[Eta]] = {"constant": Eta, "linear": Linear, "cosine": Cosine, "adaptive": Adaptive}
