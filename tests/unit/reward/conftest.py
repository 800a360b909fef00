"""A judge without a process of its own, for tables of many answers."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from reward import math
from reward.judge import Reply, process, worker
from reward.limits import Limits


@pytest.fixture
def judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process do what a judge's child does with a question: a fork takes four times as long as an answer."""

    def ask(question: partial[Any], *, limits: Limits, load: Callable[[], object] | None = None) -> Reply[Any]:
        if load is not None:
            load()
        value = process._value(worker._answer(question))
        return Reply(value=process._checked(value, inspect.signature(question.func).return_annotation), seconds=0.0)

    monkeypatch.setattr(math, "ask", ask)
