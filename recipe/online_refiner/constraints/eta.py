"""The weight of the constraint, from step to step."""

import json
import logging
import math
from pathlib import Path

from recipe.online_refiner.constraints.base import Constraint, Weighted

logger = logging.getLogger(__name__)


class Eta:
    """``constraint.eta``, the same in every step."""

    def __init__(self, first: float) -> None:
        self.value = first

    def observe(self, divergence_per_token: float) -> None:
        """Take note of D of a whole step, in nats per token: the mean over its rollouts, rejected ones counting 0."""

    def save(self, path: Path) -> None:
        """Write what a resumed run needs and the config does not tell."""

    def load(self, path: Path) -> None:
        """Read what :meth:`save` wrote."""


class AdaptiveEta(Eta):
    """Dual ascent on Eq. 5, max reward subject to D <= delta: eta is its multiplier.

    After each step eta <- eta * exp(RATE * clip(D / delta - 1, -1, 1)): it grows while the constraint is violated and
    decays while it is slack (the multiplicative form of the dual update, which keeps eta positive and does not depend
    on the unit of D). It stays within a factor of RANGE around ``constraint.eta``.
    """

    RATE, RANGE = 0.1, 1000.0

    def __init__(self, first: float, delta: float) -> None:
        """Start at the weight of the first step; ``delta`` is in nats per token."""
        super().__init__(first)
        self._first, self._delta = first, delta

    def observe(self, divergence_per_token: float) -> None:
        """Make the dual step; a D that is not a number says nothing."""
        if math.isnan(divergence_per_token):
            return
        violation = min(1.0, divergence_per_token / self._delta - 1)  # D >= 0, so never below -1
        changed = self.value * math.exp(self.RATE * violation)
        self.value = min(max(changed, self._first / self.RANGE), self._first * self.RANGE)

    def save(self, path: Path) -> None:
        """Write the multiplier; JSON keeps every bit of a float."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"eta": self.value}), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Read the multiplier; a checkpoint of a constant eta has none: it starts again, and a line says so."""
        if path.exists():
            self.value = json.loads(path.read_text(encoding="utf-8"))["eta"]
        else:
            logger.warning("eta starts again at %g: there is no %s", self.value, path)


def make_eta(constraint: Constraint) -> Eta:
    """Return the weight that a constraint asks for."""
    if isinstance(constraint, Weighted) and constraint.is_adaptive:
        assert constraint.delta is not None, "checked before"
        return AdaptiveEta(constraint.first_eta, constraint.delta)
    return Eta(constraint.first_eta)
