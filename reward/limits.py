"""The limits under which one answer's code runs, and their defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf
from typing import Any


@dataclass(slots=True, kw_only=True, frozen=True)
class Limits:
    """Limits of one answer; every value is a positive number of its field's type, else ValueError."""

    # Seconds that all threads of one test spend on processors, on one core at a time.
    test_s: float = 4.0
    wall_factor: float = 3.0  # wall seconds that count as one such second, of a program that waits or has to wait
    solution_s: float = 20.0  # the same seconds, of all tests of one answer together
    startup_s: float = 15.0  # wall seconds for the interpreter to get ready; beyond: infra_error
    memory_bytes: int = 1 << 30  # address space of the program, beside the interpreter's own
    file_bytes: int = 16 << 20  # largest file that the program may write
    scratch_bytes: int = 64 << 20  # all files that it may have at a time; beyond: output_limit
    open_files: int = 64  # file descriptors of the program
    output_bytes: int = 1 << 20  # bytes of standard output, and of a returned value; beyond: output_limit
    judge_s: float = 10.0  # CPU seconds of the judge for one answer's code, or one test's output; beyond: output_limit
    judge_bytes: int = 512 << 20  # memory of the judge for these, beside its own
    infra_attempts: int = 3  # how often a test is started before its failure to start counts as infra_error

    @classmethod
    def given(cls, limits: Mapping[str, Any] | None) -> "Limits":
        """Return limits with these values and defaults for the rest; ValueError names one that does not exist."""
        names = [field.name for field in fields(cls)]
        if unknown := set(limits or {}).difference(names):
            raise ValueError(f"there is no limit {min(unknown)}: choose from {', '.join(names)}")
        return cls(**dict(limits or {}))

    def __post_init__(self) -> None:
        """Reject limits under which nothing could run."""
        for field in fields(self):
            value = getattr(self, field.name)
            kind = int if isinstance(field.default, int) else float
            if isinstance(value, bool) or not isinstance(value, (int, kind)) or not 0 < value < inf:
                number = "whole number" if kind is int else "number"
                raise ValueError(f"limit {field.name} must be a {number} above 0, got {value!r}: set {field.name} > 0")
