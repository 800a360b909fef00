"""Block-wise refinement: what of a turn is kept as the beginning of its refinement.

A turn is a row of blocks: lines, sentences or paragraphs. One of them is chosen; the token ids before the one in which
it begins stay exactly as they are, and the refiner writes from there on. At the first block, it writes everything.
"""

import functools
import random
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from recipe.online_refiner.rollout import Rollout
from refiner_worker.config import RefinerConfig
from refiner_worker.parsing import decode

SEPARATORS = {
    "line": re.compile(r"\n(?=[^\S\n]*\S)"),
    "sentence": re.compile(r"(?<=[.!?])['\")\]]*\s+|(?<=[。！？])\s*(?=[^。！？\s])|\n\s*"),
    "paragraph": re.compile(r"\n[^\S\n]*\n(?=[^\S\n]*\S)"),
}
"""What stands before a block that is not the first, in a text without white space at its end; in linear time."""


def num_kept_tokens(config: RefinerConfig, rollout: Rollout, tokenizer: Any, limit: int) -> int:
    """Return how many token ids of a turn its refinement begins with: fewer than ``limit``, and never all."""
    assert config.block is not None
    offsets = token_offsets(rollout.turn_ids, tokenizer)
    characters = block_starts(decode(tokenizer, rollout.turn_ids), config.block)
    starts = list(dict.fromkeys(token_at(offsets, one) for one in characters))
    ends = [*starts[1:], len(rollout.turn_ids)]
    blocks = [range(start, end) for start, end in zip(starts, ends, strict=True) if start < max(1, limit)]
    failing = None if rollout.first_error is None else rollout.first_error - len(decode(tokenizer, rollout.earlier_ids))
    return CHOICES[config.block_choice](rollout, blocks, failing and token_at(offsets, max(0, failing)))


def block_starts(text: str, block: str) -> list[int]:
    r"""Return where the blocks of a text begin, the first one at 0; each has something beside white space.

    Example: ``block_starts("a = 1\n\n  b = 2\n", "line")`` is [0, 7].
    """
    first = len(text) - len(text.lstrip())
    found = (separator.end() for separator in SEPARATORS[block].finditer(text.rstrip()))
    return [0, *(start for start in found if start > first)]


def token_offsets(ids: list[int], tokenizer: Any) -> list[int]:
    """Return where in their text each of some token ids begins, in characters; parts of one begin together."""
    offsets, length, context, done = [], 0, 0, 0
    for end in range(1, len(ids) + 1):
        offsets.append(length)
        known, text = _text(tokenizer, tuple(ids[context:done])), _text(tokenizer, tuple(ids[context:end]))
        is_whole = len(text) > len(known) and not text.endswith("\N{REPLACEMENT CHARACTER}")
        if is_whole or end - done == 4:  # no character has more bytes
            # What it adds to the text before it: alone a token may lack its white space.
            length, context, done = length + len(text) - len(known), done, end
    return offsets


@functools.lru_cache(maxsize=1 << 16)  # a text has few pairs of tokens, and other texts have the same ones
def _text(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return decode(tokenizer, list(ids))


def token_at(offsets: list[int], character: int) -> int:
    """Return the token that a character is in; of several that begin in one place, the first."""
    return bisect_left(offsets, offsets[bisect_right(offsets, character) - 1])


def _first_failure(rollout: Rollout, blocks: list[range], failing: int | None) -> int:
    """The block in which the reward saw the response fail first; where it saw none, everything is written."""
    return max(block.start for block in blocks if block.start <= (failing or 0))


def _uncertainty(rollout: Rollout, blocks: list[range], failing: int | None) -> int:
    """The block with the largest mean of -log p under the policy that wrote it."""
    log_probs = rollout.log_probs[rollout.start :]
    return min(blocks, key=lambda block: sum(log_probs[n] for n in block) / len(block)).start


def _random(rollout: Rollout, blocks: list[range], failing: int | None) -> int:
    """Any block; by prompt, step and session alone, wherever that is asked."""
    seed = f"{rollout.prompt_ids} {rollout.request.get('global_steps')} {rollout.session}"
    return random.Random(seed).choice(blocks).start


CHOICES: dict[str, Callable[[Rollout, list[range], int | None], int]] = {
    "first_failure": _first_failure,
    "uncertainty": _uncertainty,
    "random": _random,
}
"""From a rollout, the blocks of its turn (their tokens), and the token that fails, if known: where one begins."""
