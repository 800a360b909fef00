"""Suggestions for misspelt names and keys."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from hydra.errors import HydraException, MissingConfigException

from refiner_worker.keys import nearest


def unknown(key: str, name: Any, known: Collection[str]) -> str:
    """Return the line about a key whose value is unknown, with the known values and the nearest one."""
    return f"{key}={name} is not known; set one of: {', '.join(sorted(known))}{nearest(name, known)}"


def nearest_key(key: str, config: Mapping[str, Any]) -> str:
    """Return a suggestion for an unknown key: the key in another block, a similar one, or one with the same end.

    Examples: ``refiner.imitate_solved`` is ``constraint.imitate_solved``, ``refiner.placment`` is
    ``refiner.placement``, ``rollout.n`` is ``actor_rollout_ref.rollout.n``.
    """
    block: Any = config
    parts = key.split(".")
    others = [name for name, other in config.items() if isinstance(other, Mapping) and parts[-1] in other]
    if len(parts) == 2 and len(others) == 1:
        return f"; did you mean {others[0]}.{parts[1]}?"
    for number, part in enumerate(parts):
        if not isinstance(block, Mapping):
            break
        if part in block:
            block = block[part]
            continue
        if near := difflib.get_close_matches(part, list(block), n=1):
            return f"; did you mean {'.'.join([*parts[:number], near[0], *parts[number + 1 :]])}?"
        break
    ends = [one for one in _paths(config) if one.endswith(f".{key}")]
    return f"; did you mean {min(ends, key=len)}?" if ends else ""


def _paths(config: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in config.items():
        yield f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{name}.")


def in_one_line(error: HydraException, known: Callable[[], Mapping[str, Any]]) -> str:
    """Return Hydra's message about overrides that it refuses, in one line with the nearest name.

    Args:
        error: The error that Hydra raised while it composed the config.
        known: The config without those overrides.
    """
    said = "; ".join(line.strip() for line in str(error).splitlines() if line.strip())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options:
        group, _, name = error.missing_cfg_file.rpartition("/")
        return unknown(group, name, error.options)
    if found := re.match("Could not override '([^']+)'.*To append to your config", said):
        key = found[1]
        return f"{key} does not exist{nearest_key(key, known()) or f'; write +{key}=... if it shall be a new key'}"
    return said
