"""Block-wise refinement: what of a turn is kept as the beginning of its refinement.

A turn is a row of blocks: tokens, lines, sentences or paragraphs. One of them is chosen; the token ids before the one
in which it begins stay exactly as they are, and the refiner writes from there on. At the first block, it writes
everything.
"""

import functools
import math
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


def num_kept_tokens(
    config: RefinerConfig, rollout: Rollout, tokenizer: Any, limit: int, departs_at: int | None = None
) -> int:
    """Return how many token ids of a turn its refinement begins with: fewer than ``limit``, and never all.

    ``departs_at`` is the token at which the refiner departs from the turn, for a choice by the ``refiner``.
    """
    assert config.block is not None
    offsets = token_offsets(rollout.turn_ids, tokenizer)
    characters = offsets
    if config.block != "token":
        characters = block_starts(decode(tokenizer, rollout.turn_ids), config.block)
    starts = list(dict.fromkeys(token_at(offsets, one) for one in characters))
    ends = [*starts[1:], len(rollout.turn_ids)]
    blocks = [range(start, end) for start, end in zip(starts, ends, strict=True) if start < max(1, limit)]
    wrong_at = departs_at
    if config.block_choice == "first_failure" and rollout.first_error is not None:
        wrong_at = token_at(offsets, max(0, rollout.first_error - len(decode(tokenizer, rollout.earlier_ids))))
    return CHOICES[config.block_choice](rollout, blocks, wrong_at or 0)


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


def departure(rollout: Rollout, log_probs: list[float], temperature: float) -> int:
    """Return at which token the refiner departs from a turn, from its log-probs of the turn's first ones.

    Each is kept with the refiner's own probability of it, as speculative decoding keeps a draft: so the beginning is
    one that the refiner would have written itself. At temperature 0 it is kept where it is more likely than not.
    """
    draw = _draws(rollout)
    kept = (math.exp(log_prob) > (draw.random() if temperature else 0.5) for log_prob in log_probs)
    return next((place for place, is_kept in enumerate(kept) if not is_kept), len(log_probs))


def _draws(rollout: Rollout) -> random.Random:
    """Return what draws for a rollout: by prompt, step and session alone, wherever that is asked."""
    return random.Random(f"{rollout.prompt_ids} {rollout.request.get('global_steps')} {rollout.session}")


def _wrong_place(rollout: Rollout, blocks: list[range], wrong_at: int) -> int:
    """The block that holds the token; the first one, so that everything is written, where none is known."""
    return max(block.start for block in blocks if block.start <= wrong_at)


def _uncertainty(rollout: Rollout, blocks: list[range], wrong_at: int) -> int:
    """The block with the largest mean of -log p under the policy that wrote it."""
    log_probs = rollout.log_probs[rollout.start :]
    return min(blocks, key=lambda block: sum(log_probs[n] for n in block) / len(block)).start


def _random(rollout: Rollout, blocks: list[range], wrong_at: int) -> int:
    """Any block."""
    return _draws(rollout).choice(blocks).start


CHOICES: dict[str, Callable[[Rollout, list[range], int], int]] = {
    "first_failure": _wrong_place,
    "refiner": _wrong_place,
    "uncertainty": _uncertainty,
    "random": _random,
}
"""From a rollout, the blocks of its turn (their tokens), and the token that is wrong, if known: where one begins."""
