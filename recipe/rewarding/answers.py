"""Checks of what a reward function returns: if it is no finite number, only the response that it rewards is lost.

Reward functions are called in threads or event loops of verl. There SystemExit and KeyboardInterrupt end the loop, and
whoever awaits a function that raises StopIteration waits for ever (``asyncio.Future.set_exception`` refuses it).
"""

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

MAX_SHOWN = 100
"""Characters of a wrong reward that its error shows."""


class RewardFunctionError(RuntimeError):
    """A reward function has raised an exception that would end the processes which wait for it."""


def as_number(value: Any) -> float | None:
    """Return a scalar of Python, NumPy or torch as a float; None for what is no finite number.

    Example: ``as_number(torch.tensor(True))`` is 1.0; of ``"0.5"``, ``[0.5]``, ``nan`` and ``10**400`` it is None.
    """
    is_array = getattr(value, "ndim", None) == 0  # NumPy's or torch's, which the config's readers do not import
    try:
        number = value.item() if is_array else value
        if not isinstance(number, numbers.Number):
            return None
        number = float(number)  # type: ignore[arg-type]  # a complex one raises
    except (TypeError, ValueError, OverflowError, RuntimeError):  # complex, a signalling NaN, too large
        return None
    return number if math.isfinite(number) else None


def checked_score(answer: Any) -> float:
    """Return the reward in an answer of a reward function: a number, or a dict with ``score``.

    Raises:
        ValueError: If there is no finite number.
    """
    if isinstance(answer, dict) and "score" not in answer:
        keys = ", ".join(map(str, answer)) or "nothing"
        raise ValueError(f"the reward function returned a dict without score (it has {keys}); add 'score': 0.5, say")
    score = answer["score"] if isinstance(answer, dict) else answer
    if (number := as_number(score)) is None:
        raise ValueError(f"the reward is no finite number: {score!r:.{MAX_SHOWN}}; return a number such as 0.5")
    return number


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function, async if it is, whose rewards are floats and whose errors end nothing else."""
    return partial(_await if inspect.iscoroutinefunction(function) else _call, function)


async def awaited(answer: Awaitable[Any]) -> Any:
    """Return what an awaitable returns.

    Raises:
        RewardFunctionError: If the awaitable raises something that is no Exception, or a CancelledError although
            nothing has cancelled it.
    """
    try:
        return await answer
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():  # by a time limit
            raise
        raise _harmless(error) from None


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    try:
        return _with_number(function(**arguments))
    except BaseException as error:  # the function's own, or of a dict or a number of the user's class
        raise _harmless(error) from None


async def _await(function: Callable[..., Any], **arguments: Any) -> Any:
    answer = await awaited(function(**arguments))
    return _call(lambda: answer)


def _with_number(answer: Any) -> Any:
    score = checked_score(answer)
    return {**answer, "score": score} if isinstance(answer, dict) else score


def _harmless(error: BaseException) -> Exception:
    """Return an error that a future can hold: a reward function's own, or one in the place of another kind."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RewardFunctionError(f"the reward function raised {type(error).__name__}: {error}".removesuffix(": "))
