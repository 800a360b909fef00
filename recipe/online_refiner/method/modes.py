"""The modes of ``constraint.mode``, and the reader of the block ``constraint``.

| mode, target | penalty | alignment | imitation | default eta |
|---|---|---|---|---|
| ``none`` | - | - | - | 0 |
| ``penalty`` | D of Eq. 6 | by key | - | 0.001 |
| ``sft`` | - | by key | every token of a' has weight 1 | 0.03 |
| ``lagrangian`` | D of Eq. 6 | by key | a token of a' weighs as often as it is charged for | 0.01 |
| ``penalty`` in place | each token of a by pi_0 that has read a' | - | - | 0.03 |
| ``sft`` in place | the same | - | every token of a' has weight 1 | 0.03 |

A mode of one's own is a class in a module of one's own: ``constraint.mode=my_module:MyConstraint``
(``examples/own_constraint``). It is a subclass of ``Gated``, which has the key ``reward_gate``; of ``Aligned``, which
has the key ``alignment`` too, if it charges by the counterparts of Eq. 6; of a mode's class; or of ``Weighted``, which
uses no refinement unless ``is_used`` is overridden.
"""

import importlib
import inspect
import sys
from dataclasses import fields
from functools import cached_property
from typing import Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic.dataclasses import dataclass, is_pydantic_dataclass

from recipe.online_refiner.method import eq6
from recipe.online_refiner.method.asks import Blocks
from recipe.online_refiner.method.constraint import Companion, Constraint, Weighted, lets_through
from recipe.online_refiner.method.imitation import SEQUENCE_LOSSES, ImitationPart, Normaliser, RescueDeadGroups
from recipe.online_refiner.method.in_place import InPlace, InPlaceSft
from recipe.online_refiner.method.pairs import Turn, Verdict
from recipe.online_refiner.method.penalty import Credit, Eq6Penalty, PenaltyPart
from refiner_worker.keys import BLOCK, nearest, read_keys
from refiner_worker.text.thoughts import Thoughts


@dataclass(kw_only=True, config=BLOCK)
class Unconstrained(Constraint):
    """verl's own step: nothing is refined."""

    refines: ClassVar[bool] = False


@dataclass(kw_only=True, config=BLOCK)
class Gated(Weighted):
    """A constraint whose refinements act on the policy if the reward gate lets them through. It is no mode itself."""

    reward_gate: bool = True
    """Which refinements act. ``true``: those with a higher reward (Eq. 6). ``false``: all with a reward (the paper's
    ablation)."""

    def is_used(self, verdict: Verdict) -> bool:
        """Return whether a refinement acts on the policy: whether the reward gate lets it through."""
        return lets_through(verdict, reward_gate=self.reward_gate)


@dataclass(kw_only=True, config=BLOCK)
class Aligned(Gated):
    """A constraint that pairs tokens of a with tokens of a', as Eq. 6 does. It is no mode itself."""

    alignment: Literal["position", "diff"] = "position"
    """Which token of a' a token of a is charged for. ``position``: the same position (Eq. 6). ``diff``: only tokens
    that the edit changed."""

    def counterparts(self, turn: Turn) -> list[int]:
        """Return c(t) of each token of the turn by the key ``alignment``."""
        refinement = turn.refinement
        return eq6.counterparts(self.alignment, turn.ids, refinement.token_ids, refinement.num_kept_tokens)


@dataclass(kw_only=True, config=BLOCK)
class Penalty(Aligned):
    """Eq. 6 as a penalty, token by token: the policy avoids what pi_0 would write otherwise."""

    DEFAULT_ETA: ClassVar[float] = 1e-3  # Appendix B of the paper
    TRIED: ClassVar[tuple[float, float] | None] = (1e-4, 1.0)

    credit: Credit = "return_to_go"
    """Which tokens answer for D. ``return_to_go``: token t for the charges from t on (the paper's way), in the
    advantages after the group's normalisation; with a critic, each token for its charge in its reward. ``in_reward``:
    the last token's reward is lowered by eta D / min(n, m), before the normalisation."""

    @cached_property
    def penalty(self) -> PenaltyPart:
        """D of Eq. 6."""
        return Eq6Penalty(self.credit)


@dataclass(kw_only=True, config=BLOCK)
class Sft(Aligned):
    """The cross-entropy of accepted refinements in the loss: the policy is pulled to them."""

    DEFAULT_ETA: ClassVar[float] = 0.03  # docs/results.md
    TRIED: ClassVar[tuple[float, float] | None] = (0.01, 1.0)

    sft_normaliser: Normaliser = "batch"
    rescue_dead_groups: RescueDeadGroups = False
    imitate_solved: bool = False
    """A control: a response that reaches ``refiner.skip_reward_at_least`` is its own refinement."""

    @cached_property
    def imitation(self) -> ImitationPart:
        """The cross-entropy of each token of a' that the refiner wrote."""
        return ImitationPart(normaliser=self.sft_normaliser, rescue_dead_groups=self.rescue_dead_groups)

    def companion(self, tokenizer: Any, thoughts: Thoughts | None, chat_settings: Any, longest: int) -> Companion:
        """Return a companion that also imitates solved responses, if ``imitate_solved`` is set."""
        return Companion(imitates_solved=self.imitate_solved)

    def refusal(self, config: DictConfig, blocks: Blocks) -> str | None:
        """Return one line if no key defines which responses are solved."""
        if self.imitate_solved and blocks.refiner.skip_reward_at_least is None:
            return "constraint.imitate_solved=true: set refiner.skip_reward_at_least to the highest reward, such as 1"
        return None


@dataclass(kw_only=True, config=BLOCK)
class Lagrangian(Aligned):
    """The gradient of -eta E[D]: a is charged for D of Eq. 6, and a' is imitated with the weights that it has in D."""

    DEFAULT_ETA: ClassVar[float] = 0.01
    TRIED: ClassVar[tuple[float, float] | None] = (0.01, 1.0)

    sft_normaliser: Normaliser = "batch"
    rescue_dead_groups: RescueDeadGroups = False
    credit: Credit | None = None
    """Which tokens answer for D. Null: each token of the turn for all of D; with a critic, the last token's reward pays
    D. Else as in mode ``penalty``."""

    @cached_property
    def penalty(self) -> PenaltyPart:
        """D of Eq. 6."""
        return Eq6Penalty(self.credit)

    @cached_property
    def imitation(self) -> ImitationPart:
        """The cross-entropy with the gradient of D: a token of a' weighs as often as it is charged for."""
        return ImitationPart(
            normaliser=self.sft_normaliser, rescue_dead_groups=self.rescue_dead_groups, weights=self.times_charged
        )

    def times_charged(self, turn: Turn) -> list[float]:
        """Return how many tokens of a are charged for each token of a', (len a',)."""
        pairs = self.counterparts(turn) if turn.is_charged else []
        return eq6.times_charged(pairs, len(turn.refinement.token_ids), turn.refinement.num_kept_tokens)

    def refusal(self, config: DictConfig, blocks: Blocks) -> str | None:
        """Return one line if the two terms would not be one gradient."""
        if self.sft_normaliser != "batch":
            return (
                f"constraint.mode=lagrangian with constraint.sft_normaliser={self.sft_normaliser}: the policy's loss "
                "is divided by the batch's tokens; set constraint.sft_normaliser=batch"
            )
        actor = config.actor_rollout_ref.actor
        if actor.loss_agg_mode == "seq-mean-token-mean" or actor.policy_loss.loss_mode in SEQUENCE_LOSSES:
            return (
                "constraint.mode=lagrangian: the policy's loss is divided by the length of a, the cross-entropy by "
                "that of a', so that they are no gradient of one objective; set "
                "actor_rollout_ref.actor.loss_agg_mode=token-mean and "
                "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla"
            )
        return None


CONSTRAINTS: dict[tuple[str, str], type[Constraint]] = {
    ("none", "rewrite"): Unconstrained,
    ("penalty", "rewrite"): Penalty,
    ("penalty", "in_place"): InPlace,
    ("sft", "rewrite"): Sft,
    ("sft", "in_place"): InPlaceSft,
    ("lagrangian", "rewrite"): Lagrangian,
}
"""The constraints of the package by mode and target."""


def read_constraint(values: dict[str, Any]) -> Constraint:
    """Return the constraint from the values of the block ``constraint``; null stands for a default.

    Raises:
        ValueError: If there is no such mode, or a key is not one of the mode's.
    """
    given = {key: value for key, value in values.items() if value is not None}
    mode = str(given.get("mode"))
    if mode == "none":  # the control of a run: its keys stand, and nothing reads them
        return Unconstrained(mode="none")
    target = str(given.get("target", "rewrite"))
    found = own_constraint(mode) if ":" in mode else packaged_constraint(mode, target)
    if target == "rewrite" and "target" not in {field.name for field in fields(found)}:
        given.pop("target", None)
    said = f"constraint.mode={mode}" + (f" with target={target}" if target != "rewrite" else "")
    return read_keys("constraint", found, given, said)


def packaged_constraint(mode: str, target: str) -> type[Constraint]:
    """Return a class of CONSTRAINTS.

    Raises:
        ValueError: If there is no such class: the line names the modes, or targets, that there are.
    """
    targets = [name for of, name in CONSTRAINTS if of == mode]
    if not targets:
        modes = dict.fromkeys(of for of, _ in CONSTRAINTS)
        own = ", or a class of your own such as my_module:MyConstraint"
        raise ValueError(f"constraint.mode={mode}: set one of {', '.join(modes)}{own}{nearest(mode, modes)}")
    if target not in targets:
        meant = nearest(target, targets)
        raise ValueError(
            f"constraint.target={target} is not one of mode {mode}; set one of {', '.join(targets)}{meant}"
        )
    return CONSTRAINTS[mode, target]


def own_constraint(mode: str) -> type[Constraint]:
    """Return a class outside the package by ``module:Class``. Every process of a run imports its module.

    Raises:
        ValueError: If there is no such module or class on this machine, the class is no constraint, or it has keys and
            no decorator that makes them keys.
    """
    module, _, name = mode.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        raise ValueError(
            f"constraint.mode={mode}: there is no module {module}; set PYTHONPATH to its folder on every node, such as "
            "PYTHONPATH=$PWD"
        ) from error
    if found is None:
        names = [name for name, one in vars(sys.modules[module]).items() if isinstance(one, type)]
        raise ValueError(f"constraint.mode={mode}: module {module} has no {name}{nearest(name, names)}")
    if not (isinstance(found, type) and issubclass(found, Constraint)):
        raise ValueError(
            f"constraint.mode={mode}: {name} of module {module} is not a subclass of "
            "recipe.online_refiner.method.constraint.Constraint; set constraint.mode to one, such as "
            "my_module:MyConstraint"
        )
    if keys := undecorated_keys(found):
        raise ValueError(
            f"constraint.mode={mode}: {', '.join(keys)} of module {module} is no key, because the class lacks its "
            "decorator; write @dataclass(kw_only=True, config=BLOCK) above the class, with dataclass of "
            "pydantic.dataclasses and BLOCK of refiner_worker.keys"
        )
    return found


def undecorated_keys(found: type[Constraint]) -> list[str]:
    """Return the annotated fields, as ``Class.field``, of a constraint and its bases that lack pydantic's decorator."""
    return [
        f"{one.__name__}.{name}"
        for one in found.__mro__
        if issubclass(one, Constraint) and not is_pydantic_dataclass(one)
        for name, annotation in inspect.get_annotations(one).items()
        if "ClassVar" not in str(annotation)
    ]
