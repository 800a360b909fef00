"""The input and output of the refine stage: a rollout, its refinement, and the numbers of both.

The outcome of a refinement is its :class:`Verdict`: a refinement that is cut by the length limit is ``truncated`` and
failed, so it is neither charged nor imitated.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

Column = Sequence[int] | Sequence[float] | np.ndarray
"""A row's part of a column, at least one entry: whole numbers become int64, others float32, and the column jagged."""


class Verdict(StrEnum):
    """The outcome of a rollout's refinement."""

    NONE = "none"
    """Not refined: the run has no refine stage, or nobody has refined this row yet."""

    MAX_REWARD = "max_reward"
    """Skipped: the reward cannot improve."""
    NOT_CHOSEN = "not_chosen"
    """Skipped: other responses of the group go first (``refiner.max_refinements_per_group``), or one of them is right
    (``refiner.only_unsolved``)."""
    OVER_BUDGET = "over_budget"
    """Skipped: other responses of the step go first (``refiner.budget``)."""
    TOO_LONG = "too_long"
    """Skipped: prompt, response and refinement do not fit into the refiner's context."""
    NO_ANSWER = "no_answer"
    """Skipped: the response ends within its thought."""
    NO_TURN = "no_turn"
    """Skipped: the session does not end with a turn of the policy."""
    NOT_ASKED = "not_asked"
    """Skipped: the constraint needs no refinement: it acts in place, or the source's weight is 0
    (``constraint.by_source``)."""

    TIMEOUT = "timeout"
    """Failed: the refinement was not complete within ``refiner.request_timeout_s``."""
    REQUEST = "request"
    """Failed: the refiner refused or lost the request."""
    THOUGHT = "thought"
    """Failed: the refiner's thought was cut off (``refiner.thought_length``)."""
    TRUNCATED = "truncated"
    """Failed: the refinement was cut off by the length limit, or nothing shows where it ends."""
    EMPTY = "empty"
    """Failed: the refinement has no text."""
    ENCODING = "encoding"
    """Failed: the policy's tokens cannot hold a server's text, such as the name of a control token."""
    LEAK = "leak"
    """Failed: the refinement speaks of what the policy never sees (``refiner.reject_leaks``)."""
    REWARD = "reward"
    """Failed: the reward function raised an error, or returned no finite number."""
    FAULT = "fault"
    """Failed: this row raised an error, for example in a template. The log has the traceback."""
    WORKER = "worker"
    """Failed: the process that refined the response died."""

    ACCEPTED = "accepted"
    """Scored, and better than the response: the reward gate of Eq. 6 is open."""
    NOT_BETTER = "not_better"
    """Scored, and not better; or a' is a itself, which keeps the reward of a."""
    OWN = "own"
    """A solved response that is imitated itself (``constraint.imitate_solved``)."""

    @property
    def is_better(self) -> bool:
        """Whether a' is better than the response, or is a solved response that is imitated itself."""
        return self in (Verdict.ACCEPTED, Verdict.OWN)

    @property
    def is_scored(self) -> bool:
        """Whether there is a refined response with a reward."""
        return self in (Verdict.ACCEPTED, Verdict.NOT_BETTER, Verdict.OWN)


SKIPPED = (
    Verdict.MAX_REWARD,
    Verdict.NOT_CHOSEN,
    Verdict.OVER_BUDGET,
    Verdict.TOO_LONG,
    Verdict.NO_ANSWER,
    Verdict.NO_TURN,
    Verdict.NOT_ASKED,
)
FAILURES = tuple(one for one in Verdict if one not in (Verdict.NONE, *SKIPPED) and not one.is_scored)


def group_of(key: str) -> str:
    """Return the prompt that a row answers, from the row's key."""
    return key.rsplit("_", 2)[0]


def luck(step: object, key: object) -> float:
    """Return a number in [0, 1) by a hash of a step and a row's key.

    It breaks ties and draws samples: every process has the same number, and the order of rows, in which short responses
    come first, does not matter.
    """
    digest = hashlib.blake2b(f"{step} {key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / 2**53


def last_turn(response_mask: list[int]) -> int:
    """Return where a session's last turn begins, from the mask of the policy's own tokens.

    If the policy did not write the response's last token, there is no such turn, and the result is the response's
    length. Example: ``last_turn([1, 1, 0, 0, 1])`` is 4: two tokens call a tool, two are its output, and one answers.
    """
    start = len(response_mask)
    while start and response_mask[start - 1]:
        start -= 1
    return start


def by_size(reward: float) -> tuple[bool, float]:
    """Return what sorts rewards, the lowest first: NaN, which is neither lower nor higher than another one, last."""
    return math.isnan(reward), reward


def feedback_of(said: Mapping[str, Any]) -> str:
    """Return the words of a reward function's answer, without lone surrogates, which tokenizers refuse."""
    words = said.get("feedback")
    return "" if words is None else str(words).encode(errors="replace").decode()


def _is_object(answer: Any) -> bool:
    """Return whether an answer is a JSON object, as the tests of a program are; a set of numbers is not."""
    try:
        return isinstance(json.loads(answer) if isinstance(answer, str) else answer, dict)
    except ValueError:
        return False


@dataclass(slots=True, kw_only=True)
class Rollout:
    """A session of the policy and its reward; of its turns the last one is refined.

    Example: ``Rollout(key="u1_0_0", messages=[{"role": "user", "content": "1+1?"}], prompt_ids=[5, 6],
    response_ids=[7, 2], reward=-0.3, reward_columns={"data_source": "mini_apps", ...})``.
    """

    key: str
    """The key of the row in the TransferQueue: ``{uid}_{session}_{output}``."""
    messages: list[dict[str, Any]]
    """The chat prompt."""
    prompt_ids: list[int]
    """(prompt length,) ids of the prompt as the policy saw it."""
    response_ids: list[int]
    """(response length,) ids of the response, ended by EOS unless cut: all its turns, with tool output between them."""
    start: int = 0
    """The last turn's first position in the response (:func:`last_turn`)."""
    reward: float
    """r(s0, a), of the whole session."""
    feedback: str = ""
    """The reward function's words about the response (``feedback``); empty if there are none."""
    is_wanted: bool = True
    """Whether the response may be refined: the step can afford it (``refiner.budget``); it is not refined yet."""
    reward_columns: dict[str, Any]
    """The columns that verl's reward manager reads beside token ids: the data set's, the turns, the loop's extras."""

    @property
    def solution(self) -> str:
        """The data set's answer; empty where it has none but tests."""
        extra, model = self.reward_columns.get("extra_info") or {}, self.reward_columns.get("reward_model") or {}
        answers = (extra.get("solution"), extra.get("answer"), model.get("ground_truth"))
        answer = next((one for one in answers if one is not None and str(one).strip()), "")
        return "" if _is_object(answer) else str(answer)

    @property
    def earlier_ids(self) -> list[int]:
        """The part of the response before the last turn: earlier turns and tool output."""
        return self.response_ids[: self.start]

    @property
    def turn_ids(self) -> list[int]:
        """The last turn, a, which is refined, charged and compared with a'."""
        return self.response_ids[self.start :]

    @property
    def group(self) -> str:
        """The prompt's name: rollouts of one prompt are a group."""
        return group_of(self.key)

    @property
    def luck(self) -> float:
        """A number in [0, 1) that breaks ties (:func:`luck`)."""
        return luck(self.reward_columns.get("global_steps"), self.key)

    @property
    def session(self) -> tuple[int, int]:
        """The numbers of the session and of the output within the group."""
        _, session, output = self.key.rsplit("_", 2)
        return int(session), int(output)


def best_of(rollout: Rollout, rollouts: Sequence[Rollout]) -> Rollout:
    """Return the best rollout of the group among all with the same session so far; it may be the rollout itself.

    Of several with the highest reward it is one by :func:`luck`: the first in the list would be the shortest.
    """
    same = [one for one in rollouts if one.earlier_ids == rollout.earlier_ids and one.turn_ids]
    return max(same, key=lambda one: (not math.isnan(one.reward), one.reward, one.luck))


@dataclass(slots=True, kw_only=True)
class Bill:
    """What the requests for a refinement cost."""

    num_samples: int = 1
    """Refinements that the first request draws (``refiner.samples``)."""
    num_prompt_tokens: int = 0
    """Tokens of the prompts, once for all samples."""
    num_generated_tokens: int = 0
    """Tokens of all samples, the refiner's own thoughts included."""
    num_thought_tokens: int = 0
    """Tokens of the refiner's own thoughts, which are no part of a'."""
    num_retries: int = 0
    """Repetitions of the request (``refiner.placement=external``)."""
    latency_s: float | None = None
    """Seconds from the request to the answer; None if no answer came."""


@dataclass(slots=True, kw_only=True)
class Refinement(Bill):
    """The refiner's answer to one rollout, with its ids and its text.

    Example: ``Refinement(verdict=Verdict.ACCEPTED, token_ids=[9, 2], text="2", reward=1.0)``.
    """

    verdict: Verdict
    prompt_ids: list[int] = field(default_factory=list)
    """The prompt that the refiner read; empty if it was not asked."""
    token_ids: list[int] = field(default_factory=list)
    """a', ended by EOS; empty unless scored."""
    text: str = ""
    """a' as text; of a failed one, what was written."""
    num_kept_tokens: int = 0
    """Tokens of the response's own thought, with which a' begins."""
    num_better: int = 0
    """Samples that the reward gate lets through."""
    reward: float | None = None
    """r(s0, a') of the session with a' as its last turn; None unless scored."""
    is_repeated: bool = False
    """Whether a' is a: the same tokens, or others of the same text. It is not rewarded again."""
    in_place: list[float] | None = None
    """(turn length,) log pi_0 of the turn given a prompt with the better answer; empty: unknown; None: not asked."""
    in_place_prompt: list[int] = field(default_factory=list)
    """The prompt with the better answer, where the actor scores the turn without its adapter (placement ``shared``)."""
    own: dict[str, Any] = field(default_factory=dict)
    """What a mode outside the package has asked of pi_0 (``Companion.complete``), for its columns."""


@dataclass(slots=True, kw_only=True)
class Turn:
    """The last turn of a row's response, a, and its refinement, a'."""

    response_length: int
    """Number of tokens of the response, all its turns."""
    start: int
    """The turn's first position in the response."""
    ids: list[int]
    """a; empty in a row that nobody refines: padding, or a dead worker's."""
    refinement: Refinement
    """a' with its verdict; without ids in a row that nobody refines."""
    is_used: bool
    """Whether a' acts on the policy."""
    reward: float
    """r(s0, a) of the whole session; NaN in a row that nobody refines."""
    scale: float = 1.0
    """The weight of the row's data source as a multiple of eta (``constraint.by_source``)."""

    @property
    def is_charged(self) -> bool:
        """Whether the tokens of a may be charged: a' acts, and somebody else has written it."""
        return self.is_used and self.refinement.verdict != "own"


@dataclass(slots=True, kw_only=True)
class Pair(Bill):
    """All numbers that are known of a rollout and its refinement. The tag of its row carries it between processes.

    Example: ``Pair(reward=-0.3, verdict=Verdict.ACCEPTED, is_used=True, refined_reward=1.0, num_refined_tokens=9)``.
    The refine stage writes it; until then the driver has one with the reward alone. The actor's pass adds ``nll`` and
    ``divergence``. A mode with a charge of its own has another :class:`Divergence` of the row.
    """

    reward: float
    """r(s0, a)."""
    verdict: Verdict = Verdict.NONE
    source: str = ""
    """The row's ``data_source`` where refiners or weights differ by it (``by_source``); else empty."""
    is_used: bool = False
    """Whether the refinement acts on the policy: it is better, or the run lets all scored refinements through."""
    start: int = 0
    """The refined turn's first position in the response."""
    refined_reward: float = 0.0
    """r(s0, a'); 0 unless scored."""
    num_refined_tokens: int = 0
    """Number of tokens of a'; 0 unless scored."""
    num_kept_tokens: int = 0
    """Tokens of the response's own thought, with which a' begins."""
    num_better: int = 0
    """Samples of the refinement that the reward gate lets through."""
    num_compared_tokens: int = 0
    """min(n, m), the length of the shorter of a and a', without the thought with which both begin."""
    is_repeated: bool = False
    """Whether a' is a: the same tokens, or others of the same text."""
    edit_distance: int | None = None
    """Edit distance from a to a', in tokens; None where it was not measured."""
    own: dict[str, float] = field(default_factory=dict)
    """The mode's own numbers (``Constraint.numbers``)."""
    started_at: float = 0.0
    """The time at which the row's group was complete, in seconds since the epoch."""
    refined_at: float = 0.0
    """The time at which the row was refined, in seconds since the epoch."""
    nll: float | None = None
    """-log pi_theta(a'), summed over tokens, in nats; None where it was not computed."""
    divergence: float = 0.0
    """D of Eq. 6, summed over tokens, in nats; 0 where the refinement is not used or D was not computed."""

    @property
    def is_accepted(self) -> bool:
        """Whether the reward gate is open."""
        return self.verdict is Verdict.ACCEPTED


class Divergence(NamedTuple):
    """How far a row is from what the constraint asks for: minus the sum of its tokens' charges, at least 0 by Eq. 6."""

    nats: float
    """D of Eq. 6, or minus the sum of what a mode charges the tokens instead."""
    num_tokens: int
    """The number of tokens that it is a sum over: min(n, m) by Eq. 6, else the turn's."""

    @property
    def per_token(self) -> float:
        """The divergence in nats per token: D / min(n, m)."""
        return self.nats / max(1, self.num_tokens)


NUM_SHOWN = 8
"""The most rows that a step shows: half of them gained most, the others are attempts that were not accepted."""


def choose_shown(pairs: Mapping[int, Pair], luck_of: Mapping[int, float]) -> list[int]:
    """Return the rows whose accepted refinements gained most in a step, and some rows without an accepted refinement.

    ``luck_of`` has the number, by row, that orders rows that are alike (:func:`luck`).
    """
    refined = (*FAILURES, Verdict.ACCEPTED, Verdict.NOT_BETTER)  # not a solved response that is imitated itself
    attempted = sorted((row for row, pair in pairs.items() if pair.verdict in refined), key=luck_of.__getitem__)
    accepted = [row for row in attempted if pairs[row].is_accepted]
    accepted.sort(key=lambda row: pairs[row].reward - pairs[row].refined_reward)
    others = [row for row in attempted if not pairs[row].is_accepted]
    return (accepted[: NUM_SHOWN - min(len(others), NUM_SHOWN // 2)] + others)[:NUM_SHOWN]
