"""What the refine stage takes and gives: a rollout, its refinement, and what of both the driver hears."""

from dataclasses import dataclass, field
from typing import Any

SKIPPED = ("max_reward", "not_chosen", "too_long", "no_turn")
"""Not attempted: the reward cannot improve; others of the group go first; prompt, response and refinement do not fit
into the refiner's context; the session does not end with a turn of the policy."""
FAILED = ("timeout", "request", "truncated", "empty", "reward", "worker")
"""Attempted without a result: late; refused or lost by the refiner; cut by the length limit; no text; not scored; lost
with the process that refined it."""
SCORED = ("accepted", "not_better", "own")
"""Attempted, parsed and scored; or a solved response that is imitated itself."""
USED = ("accepted", "own")
"""They act on the policy."""
assert not set(SKIPPED) & set(FAILED) and not set(SKIPPED + FAILED) & set(SCORED)


def group_of(key: str) -> str:
    """Return the prompt that a row answers, from the row's key."""
    return key.rsplit("_", 2)[0]


def last_turn(response_mask: list[int]) -> int:
    """Return where a session's last turn begins, from the mask of the policy's own tokens.

    Example: ``last_turn([1, 1, 0, 0, 1])`` is 4: two tokens call a tool, two are its output, and one answers. Where the
    policy did not write the end, there is no such turn: the length of the response.
    """
    start = len(response_mask)
    while start and response_mask[start - 1]:
        start -= 1
    return start


@dataclass(slots=True, kw_only=True)
class Rollout:
    """A session of the policy and its reward; of its turns the last one is refined.

    Example: ``Rollout(key="u1_0_0", messages=[{"role": "user", "content": "1+1?"}], prompt_ids=[5, 6],
    response_ids=[7, 2], reward=-0.3, request={"data_source": "mini_apps", ...})``.
    """

    key: str
    """Its row in the TransferQueue: ``{uid}_{session}_{output}``."""
    messages: list[dict[str, Any]]
    """The chat prompt."""
    prompt_ids: list[int]
    """(prompt length,) as the policy saw it."""
    response_ids: list[int]
    """(response length,) ended by the EOS token unless cut; of several turns all, with the output of tools between."""
    start: int = 0
    """Where the last turn begins in it (:func:`last_turn`)."""
    reward: float
    """r(s0, a), of the whole session."""
    first_error: int | None = None
    """Where the reward saw it fail first, if it says so (``first_error``): a character of the response's text."""
    feedback: str = ""
    """What the reward says of it in words, if it does (``feedback``)."""
    log_probs: list[float] = field(default_factory=list)
    """(response length,) under the policy that wrote it; empty where nothing needs them."""
    request: dict[str, Any]
    """What verl's reward request for it has beside token ids: the data set's columns, turns, the loop's extras."""

    @property
    def solution(self) -> str:
        """The data set's answer; empty where it has none but tests."""
        extra, model = self.request.get("extra_info") or {}, self.request.get("reward_model") or {}
        answer = extra.get("solution") or extra.get("answer") or model.get("ground_truth") or ""
        return "" if str(answer).lstrip().startswith("{") else str(answer)

    @property
    def earlier_ids(self) -> list[int]:
        """What of the response the last turn has before it: turns and the output of tools."""
        return self.response_ids[: self.start]

    @property
    def turn_ids(self) -> list[int]:
        """The last turn, a: what is refined, charged and compared with a'."""
        return self.response_ids[self.start :]

    @property
    def group(self) -> str:
        """The prompt that it answers: rollouts of one prompt are a group."""
        return group_of(self.key)

    @property
    def session(self) -> tuple[int, int]:
        """Which of its group's rollouts it is."""
        _, session, output = self.key.rsplit("_", 2)
        return int(session), int(output)


@dataclass(slots=True, kw_only=True)
class Refinement:
    """What became of one rollout in the refine stage.

    Example: ``Refinement(verdict="accepted", token_ids=[9, 2], text="2", reward=1.0)``.
    """

    verdict: str
    """One of SKIPPED, FAILED or SCORED; ``accepted`` if its reward is higher than the response's: the gate of Eq. 6."""
    token_ids: list[int] = field(default_factory=list)
    """a', ended by EOS; empty unless SCORED."""
    text: str = ""
    """a' as text; of a failed one, what was written."""
    reward: float | None = None
    """r(s0, a') of the session with a' as its last turn; None unless SCORED."""
    num_kept_tokens: int = 0
    """How many ids of the turn the refiner's answer was begun with (``boundary.py``): a' begins with them."""
    num_prompt_tokens: int = 0
    """Of all candidates, as the next one; what the answer was begun with is part of each prompt."""
    num_generated_tokens: int = 0
    num_copied_tokens: int | None = None
    """How many tokens of a' stand in the sibling or solution that the refiner was shown; None: it was shown neither."""

    @property
    def is_scored(self) -> bool:
        """Whether there is a refined response."""
        return self.verdict in SCORED


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What the driver hears of a refinement: numbers. It travels in the tag of its row."""

    verdict: str
    """As in :class:`Refinement`."""
    is_used: bool = False
    """Whether the refinement acts on the policy: it is better, or the run lets all scored ones through."""
    start: int = 0
    """Where the refined turn begins in the response."""
    refined_reward: float = 0.0
    num_refined_tokens: int = 0
    """Length of a'; 0 unless SCORED, as the next one."""
    is_verbatim: bool = False
    """Whether a' is a."""
    num_kept_tokens: int = 0
    """As in :class:`Refinement`."""
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    num_copied_tokens: int | None = None
    """As in :class:`Refinement`."""
    detail: str = ""
    """What a failed attempt wrote, or why it failed; shortened."""
    started_at: float = 0.0
    """When its group was complete, and when the group was refined, in seconds since the epoch."""
    refined_at: float = 0.0

    @property
    def is_scored(self) -> bool:
        """Whether there is a refined response."""
        return self.verdict in SCORED
