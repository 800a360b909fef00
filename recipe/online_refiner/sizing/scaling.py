"""How many refiner replicas a fleet needs: the same step played on fleets of several sizes."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from recipe.online_refiner.sizing.constants import Constants
from recipe.online_refiner.sizing.fleet import Group, Placement, Pool, Setting, simulate
from recipe.online_refiner.sizing.measured import Run
from recipe.online_refiner.sizing.replicas import Request

MAX_EXPOSED = 0.05
"""Share of a step that refining may add."""
TEMPLATE_TOKENS = 100
ActorPasses = tuple[bool, bool]
NUM_ROUNDS = 4
"""Of ``separate_async``: how often as many mini-batches are played as are in flight at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests of a step: responses of log-normal length, or a run's own groups, drawn anew."""

    num_prompts: int
    """A step's."""
    group_size: int = 8
    prompt: int = 512
    response: int = 1024
    """Mean length, in tokens; of those that are longer than ``longest``, that counts."""
    longest: int = 4096
    sigma: float = 0.7
    """Of the logarithm of lengths."""
    refined: float = 0.5
    """Share of the responses that are refined."""
    cap: int | None = None
    """Refined responses of a prompt, at most."""
    used: float = 1.0
    """Share of the refinements that pass the reward gate: on these the actor works too."""
    actor_passes: ActorPasses = (True, False)
    """What it does with them: log pi(a') (modes ``penalty`` and ``lagrangian``), their cross-entropy in the update
    (``sft`` and ``lagrangian``)."""
    gained: float = 1.0
    """Tokens that a refinement's pass writes, 1 without drafts; and computes."""
    computed: float = 1.0
    run: Run | None = None
    seed: int = 0

    def groups(self, num_prompts: int, width: float) -> list[Group]:
        """Draw the requests of some prompts; a token of a response costs ``width``."""
        draw = random.Random(self.seed)
        if self.run is not None:
            found = [group for step in self.run.steps for group in step.groups(width)]
            return [_copy(draw.choice(found)) for _ in range(num_prompts)]
        return [self._group(draw, width) for _ in range(num_prompts)]

    def _group(self, draw: random.Random, width: float) -> Group:
        median = math.log(self.response) - self.sigma**2 / 2
        lengths = [
            min(self.longest, max(1, round(draw.lognormvariate(median, self.sigma)))) for _ in range(self.group_size)
        ]
        refined = [length for length in lengths if draw.random() < self.refined][: self.cap]
        return Group(
            responses=[Request(prompt=self.prompt, answer=length, computed=width) for length in lengths],
            refinements=[
                Request(
                    prompt=self.prompt + length + TEMPLATE_TOKENS,
                    answer=length,
                    gained=self.gained,
                    computed=self.computed,
                )
                for length in refined
            ],
        )


@dataclass(slots=True, kw_only=True)
class Row:
    """A fleet and its step."""

    gpus: int
    """That train and write; a dedicated refiner's come on top."""
    placement: Placement
    refiner_replicas: int
    refiner_gpus: int
    step_s: float
    rollout_s: float
    exposed_s: float
    """What is waited for because of the refiner."""
    refined_s: float
    """Of the update and of log-probs: what the actor does with refinements."""
    exposed_share: float
    refiner_busy: float
    is_enough: bool
    """Whether the exposed share is below ``MAX_EXPOSED``. Where it is not, no number of replicas helps: the last
    refinements alone take as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """GPUs, and who is on them."""

    gpus: int
    """That train and write; in ``separate_async`` as many train beside them."""
    placement: Placement
    sizes: tuple[int, int] = (1, 1)
    """GPUs of a replica of the rollout, and of the refiner."""
    most: tuple[int, int] = (256, 256)
    """Requests that run at once on a replica of each."""
    replicas: int | None = None
    """Of the refiner; None: as many as fit, and of a dedicated one as few as are enough."""
    is_async: bool = False
    """Whether the trainer is ``separate_async``."""
    warm_up: int = 1
    """Its ``num_warmup_batches``: mini-batches in flight beside the one that is waited for."""

    @property
    def num_refiners(self) -> int:
        """Replicas of the refiner, at most."""
        return self.replicas or max(1, self.gpus // self.sizes[1])

    def setting(self, constants: Constants, batch: int) -> Setting:
        """Return what is played, with mini-batches of so many groups."""
        pools = [
            Pool(num_replicas=number, pace=pace, max_running=running, kv_tokens=tokens)
            for number, pace, running, tokens in zip(
                (max(1, self.gpus // self.sizes[0]), self.num_refiners),
                (constants.rollout, constants.refiner),
                self.most,
                constants.kv_tokens,
                strict=True,
            )
        ]
        return Setting(
            rollout=pools[0],
            refiner=pools[1],
            placement=self.placement,
            reward_s=constants.reward_s,
            stage_s=constants.stage_s + (constants.wake_s if self.placement == "colocated" else 0.0),
            batch=batch if self.is_async else None,
            num_in_flight=(1 + self.warm_up) * batch if self.is_async else 0,
        )


def size(work: Workload, constants: Constants, fleet: Fleet) -> Row:
    """Play a step; with a dedicated refiner on as few replicas as keep what it adds below ``MAX_EXPOSED``."""
    setting, is_async = fleet.setting(constants, work.num_prompts), fleet.is_async
    num_batches = NUM_ROUNDS * (1 + fleet.warm_up) if is_async else 1
    groups = work.groups(work.num_prompts * num_batches, constants.rollout_width)
    num_tokens = sum(one.prompt + one.answer for group in groups for one in group.responses) / num_batches
    learn_s = num_tokens / fleet.gpus * (1 / constants.train_tokens_per_s + 1 / constants.score_tokens_per_s)
    refined_s = _refined_s(work, groups, constants) / num_batches / fleet.gpus
    learn_s += refined_s
    bare = [Group(responses=group.responses, refinements=[]) for group in groups]
    bare_s = simulate(setting, bare).rollout_s if is_async else None

    def row(num_replicas: int) -> Row:
        there = replace(setting, refiner=replace(setting.refiner, num_replicas=num_replicas))
        played = simulate(there, groups, bare_s)
        whole = played.rollout_s + played.exposed_s
        step_s = max(whole, learn_s) if is_async else whole + learn_s
        without = max(played.rollout_s, learn_s) if is_async else played.rollout_s + learn_s
        share = 1 - without / step_s if step_s else 0.0
        return Row(
            gpus=fleet.gpus,
            placement=fleet.placement,
            refiner_replicas=0 if fleet.placement == "shared" else num_replicas,
            refiner_gpus=num_replicas * fleet.sizes[1] if fleet.placement == "dedicated" else 0,
            step_s=step_s,
            rollout_s=played.rollout_s,
            exposed_s=step_s - without,
            refined_s=refined_s,
            exposed_share=share,
            refiner_busy=played.refiner_busy,
            is_enough=share < MAX_EXPOSED,
        )

    is_free = fleet.placement == "dedicated" and fleet.replicas is None
    return _fewest(row, fleet.num_refiners) if is_free else row(fleet.num_refiners)


def _refined_s(work: Workload, groups: list[Group], constants: Constants) -> float:
    """Return the seconds of one GPU with a' behind its prompt, of the share that is used."""
    scores, imitates = work.actor_passes
    num_tokens = sum(
        group.responses[0].prompt * len(group.refinements) + sum(one.answer for one in group.refinements)
        for group in groups
    )
    pace_s = scores / constants.score_tokens_per_s + imitates / constants.train_tokens_per_s
    return work.used * num_tokens * pace_s


def _fewest(row: Callable[[int], Row], most: int) -> Row:
    """Return the row of the fewest replicas that are enough, to an eighth, or as good as the most where none is."""
    best = row(most)
    limit = MAX_EXPOSED if best.is_enough else best.exposed_share + MAX_EXPOSED
    too_few, enough = 0, most
    while enough - too_few > max(1, enough // 8):
        middle = (too_few + enough) // 2
        if (tried := row(middle)).exposed_share < limit:
            enough, best = middle, tried
        else:
            too_few = middle
    return best


def _copy(group: Group) -> Group:
    return Group(
        responses=[replace(one) for one in group.responses], refinements=[replace(one) for one in group.refinements]
    )


def columns(rows: list[dict[str, Any]]) -> str:
    """Return rows with the same names as a table, a line each."""
    texts = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in texts)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)
