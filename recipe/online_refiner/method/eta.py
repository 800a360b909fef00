"""The weight of the constraint, from step to step."""

import json
import logging
import math
from pathlib import Path

from recipe.online_refiner.method.constraint import Constraint, Weighted

logger = logging.getLogger(__name__)


class Eta:
    """The weight ``constraint.eta``: the same in every step, or if adaptive the multiplier of Eq. 5, by dual ascent.

    Eq. 5 is max reward subject to D <= delta. After each step eta <- eta * exp(RATE * clip(D / delta - 1, -1, 1)): it
    grows while the constraint is violated and decays while it is slack (the multiplicative form of the dual update,
    which keeps eta positive and does not depend on the unit of D). It stays within a factor of RANGE around
    ``constraint.eta``.
    """

    RATE, RANGE = 0.1, 1000.0

    def __init__(self, constraint: Constraint) -> None:
        """Start at the weight of the first step."""
        self.value = self._first = constraint.first_eta
        self._delta = constraint.delta if isinstance(constraint, Weighted) and constraint.is_adaptive else None

    def observe(self, divergence_per_token: float) -> None:
        """Make one dual step by the D of a whole step, in nats per token; nothing changes if D is not a number."""
        if self._delta is None or math.isnan(divergence_per_token):
            return
        violation = min(1.0, divergence_per_token / self._delta - 1)  # D >= 0, so never below -1
        changed = self.value * math.exp(self.RATE * violation)
        self.value = min(max(changed, self._first / self.RANGE), self._first * self.RANGE)

    def save(self, path: Path) -> None:
        """Write the multiplier, which does not follow from the config; JSON keeps every bit of a float."""
        if self._delta is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps({"eta": self.value}), encoding="utf-8")

    def load(self, path: Path) -> None:
        """Read the multiplier. If the checkpoint has none (its eta was constant), warn and keep the first eta."""
        if self._delta is None:
            return
        if path.exists():
            self.value = json.loads(path.read_text(encoding="utf-8"))["eta"]
        else:
            logger.warning("eta starts again at %g: there is no %s", self.value, path)
