"""Answers that do not look at what they are asked, and which of them pass all tests."""

import ast
import contextlib
import functools
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from time import process_time
from typing import Any

from reward.judge.changes import CHANGES, FURTHER_CHANGES, Answer, Change, changing
from reward.judge.empty_lists import EMPTY_LISTS
from reward.judge.source import TESTS_FILE, parsed
from reward.judge.trials import Differing, EqualToAll, Trial, always_raise

_TRIAL_SHARE = 1 / 20  # of the seconds for all: what a trial may take at least, once it has called the answer
_ENDLESS_SHARE = 1 / 100  # the same, of a test that has no end with some values
_PASSING = 2.0  # how many times as long as a trial that has passed
_MAX_RECORDED = 3  # values that tests compare with, tried as constants
_MAY_BE_RIGHT = {"the text nan": r"(?i)(?<![a-z])nan|isnan", "inf": r"(?i)\binf\b|isinf", "-inf": r"(?i)\binf\b|isinf"}
_MAX_TEXT = 60  # characters of a value in a message
_EMPTY_ITERATOR = (_ for _ in ())
_EQUAL_TO_NOTHING = object()
_PLAIN: dict[str, Any] = {
    "an empty list": [],
    "an empty dict": {},
    "an empty tuple": (),
    "an empty set": set(),
    "an empty frozenset": frozenset(),
    "an empty deque": deque(),
    "an empty text": "",
    "empty bytes": b"",
    "an empty iterator": _EMPTY_ITERATOR,
    "inf": float("inf"),
    "-inf": float("-inf"),
    "the text nan": "nan",
    "a list of an empty list": [[]],
    "0": 0,
    "True": True,
    "None": None,
}
_AFTER_A_CHANGE: tuple[Any, ...] = (0, "", 1, -1, True, None, [[]], "x")
"""Values that tests which empty or overwrite their arguments may expect."""

Tried = dict[int, list[Trial]]
"""By test: its trial with `EqualToAll`, then those with `Differing`, at least one if it has passed the first."""


class UntriedError(Exception):
    """There was no time to try the tests."""


def careless_answer(tests: Sequence[str], fn_name: str | None, seconds: float, tried: Tried) -> str:
    """What the first answer does that passes all tests although what it does is not what they ask for, or "".

    Not careless is a constant that is all that the tests compare with (`f(3) == []`), nor one that they look at no
    more than at others (`assert f(3)`), nor a change of arguments that the tests want whatever is returned, or that
    makes no difference to them.

    Args:
        tests: of one problem.
        fn_name: the function that they call `candidate`.
        seconds: CPU seconds for all of this.
        tried: what is known already.

    Raises:
        UntriedError: they were not enough.
    """
    trials = _Trials(tests, fn_name, seconds, tried)
    return next(itertools.chain(_constants(trials, tests), _empty_lists(trials), _changes(trials)), "")


class _Trials:
    """Trials of the tests of one problem, in the seconds for all."""

    def __init__(self, tests: Sequence[str], fn_name: str | None, seconds: float, tried: Tried) -> None:
        self._tests, self._fn_name, self._tried = tests, fn_name, tried
        self._seconds, self._end = seconds, process_time() + seconds
        self._expected = functools.cache(self._expected_of)
        self._expects_error = functools.cache(lambda index: self.run(always_raise, index).has_passed)
        self.order = list(range(len(tests)))
        if len(tried) == len(tests):  # what fails soonest goes first
            self.order.sort(key=lambda index: (not self._expected(index), tried[index][0].setup_s))
        self.first = self.order[0]

    def run(self, answer: Answer, index: int) -> Trial:
        """Try one test.

        Raises:
            UntriedError: there is no time for that.
        """
        tried = self._tried.get(index, [])
        seconds = self._seconds * (_ENDLESS_SHARE if any(trial.is_late for trial in tried[1:]) else _TRIAL_SHARE)
        if tried and tried[0].has_passed:
            seconds = max(seconds, _PASSING * tried[0].seconds)
        left_s = self._end - process_time()
        trial = Trial(answer, self._tests[index], self._fn_name, seconds=seconds, setup_s=max(left_s, 0.0))
        if left_s <= 0 or trial.is_untried:
            raise UntriedError(f"more than {self._seconds:.3g} CPU seconds")
        return trial

    def with_equal(self, index: int) -> Trial:
        """The trial with values that equal all."""
        if index not in self._tried:
            self._tried[index] = [self.run(lambda *_, **__: EqualToAll(), index)]
            if self._tried[index][0].has_passed:
                self._tried[index].append(self.run(lambda *_, **__: Differing(truth=True), index))
        setup_s = self._tried[index][0].setup_s
        if index == self.first and setup_s * len(_PLAIN) > self._seconds and not self._expected(index):
            raise UntriedError(f"{setup_s:.2g} CPU seconds before the first call")
        return self._tried[index][0]

    def all_with_equal(self) -> list[Trial]:
        """These trials of all tests."""
        return [self.with_equal(index) for index in self.order]

    def compared(self) -> list[list[Any]]:
        """For each call, what its value is compared with; calls whose values are not are left out."""
        found: list[list[Any]] = []
        for index, trial in zip(self.order, self.all_with_equal(), strict=True):
            operands = [list(those) for those in trial.operands]
            for other in self._tried[index][1:]:  # of several that may be right, it sees all
                for those, more in zip(operands, other.operands, strict=False):
                    those += more
            found += filter(None, operands)
        return found

    def compares_with(self, index: int) -> list[Any]:
        """What the first value must be equal to, else the test fails at once; [] where that is not sure."""
        self.with_equal(index)
        return self._expected(index)

    def _expected_of(self, index: int) -> list[Any]:
        tree = parsed(self._tests[index])
        for trial in self._tried[index][1:]:
            if trial.failed and len(trial.operands) == 1 == len(trial.operands[0]) and _is_plain(tree, trial.failed):
                return trial.operands[0]
        return []

    def all_pass(self, answer: Answer, *constant: Any) -> bool:
        """Whether all tests pass the answer, which returns a constant if one is given.

        Those that only expect an error do not tell: any answer may check its arguments first.
        """
        num_passed = 0
        for index in self.order:
            expected = self.compares_with(index)
            if constant and expected and not _is_among(constant[0], expected):
                return False
            has_passed = self.run(answer, index).has_passed
            if not has_passed and not self._expects_error(index):
                return False
            num_passed += has_passed
        return num_passed > 0


def _is_plain(tree: ast.Module, error: AssertionError) -> bool:
    """Whether it is of a line such as `assert f(3) == 4`."""
    traceback = error.__traceback__
    while traceback and traceback.tb_next:
        traceback = traceback.tb_next
    if not traceback or traceback.tb_frame.f_code.co_filename != TESTS_FILE:
        return False
    for node in ast.walk(tree):
        match node:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
                if node.lineno <= traceback.tb_lineno <= (node.end_lineno or node.lineno):
                    return any(isinstance(side, ast.Call) and isinstance(side.func, ast.Name) for side in (left, right))
    return False


def _is_among(value: Any, operands: Iterable[Any]) -> bool:
    for operand in operands:
        try:
            if value == operand:
                return True
        except Exception:  # arrays are neither equal nor not
            continue
    return False


def _may_be_right(tests: Sequence[str]) -> set[str]:
    return {name for name, pattern in _MAY_BE_RIGHT.items() if any(re.search(pattern, test) for test in tests)}


def _constants(trials: _Trials, tests: Sequence[str]) -> Iterator[str]:
    may_be_right = _may_be_right(tests)
    for what, value in _PLAIN.items():
        # Functions that are handed what others return may make anything of a number: `poly(x, find_zero(x))`.
        is_open = isinstance(value, (int, type(None))) and len(trials.with_equal(trials.first).names) > 1
        if what in may_be_right or is_open or not trials.all_pass(_returning(value), value):
            continue
        if not _is_right(value, trials):
            yield f"returns {what}"


def _returning(value: Any) -> Answer:
    return lambda *_, **__: (_ for _ in ()) if value is _EMPTY_ITERATOR else deepcopy(value)  # one has no copy


def _empty_lists(trials: _Trials) -> Iterator[str]:
    """Lists of empty ones; what passes whatever is in their place asks for no more than their number."""
    for what, of_fill in EMPTY_LISTS.items():
        is_careless = trials.all_pass(of_fill(list), _EQUAL_TO_NOTHING)
        if is_careless and not trials.all_pass(of_fill(lambda: Differing(truth=False))):
            yield f"returns {what}"


def _is_right(value: Any, trials: _Trials) -> bool:
    """Whether tests that the constant passes want no other, or ask for no more than its truth."""
    with_equal = trials.all_with_equal()
    compared = trials.compared()
    is_other = not all(_is_among(value, operands) for operands in compared)
    if compared and not is_other:
        return True
    is_one_object = value is None or (value is True and not trials.all_pass(_returning(1)))
    if is_one_object and not any(trial.looks_at_values for trial in with_equal):
        return True  # they ask whether it is that very object
    if is_other and all(trial.has_passed for trial in with_equal):
        return False
    return trials.all_pass(lambda *_, **__: Differing(truth=bool(value)))


def _changes(trials: _Trials) -> Iterator[str]:
    for what, change, values in _changes_seen(trials):
        for name, value_of in values.items():
            if (
                trials.all_pass(changing(change, value_of))
                and not trials.all_pass(changing(change, value_of, in_copies=True))
                and not trials.all_pass(changing(change, lambda _: Differing(truth=False)))
            ):
                yield f"{what} and returns {name}"


def _changes_seen(trials: _Trials) -> Iterator[tuple[str, Change, dict[str, Answer]]]:
    """Changes that make a difference, and what may pass with them.

    Tests for which the plain ones make none are not tried with the others, nor values that are right anyhow.
    """
    is_any_seen = False
    for what, change in CHANGES.items():
        if found := _first_that_sees(change, trials):
            is_any_seen = True
            yield what, change, _values_expected(found[0])
    for what, change in FURTHER_CHANGES.items() if is_any_seen else ():
        if found := _first_that_sees(change, trials):
            yield what, change, _values_expected(*found)


def _first_that_sees(change: Change, trials: _Trials) -> tuple[Trial, Trial] | None:
    """The trials with it and without, of the first test for which it makes a difference, or may make one."""
    for index in trials.order:
        plain = trials.with_equal(index)
        if not plain.gives_containers:
            continue
        changed: list[Any] = []

        def note(first: Any, changed: list[Any] = changed) -> Any:
            changed.append(first)
            return EqualToAll()

        trial = trials.run(changing(change, note), index)
        if changed and not (trials.compares_with(index) and _compare_alike(trial, plain)):
            return trial, plain
    return None


def _values_expected(seen: Trial, plain: Trial | None = None) -> dict[str, Answer]:
    """What may pass where the test sees the change, by names: functions of the first argument that was changed.

    Not what is expected of the same call without the change, as `plain` shows, if that is given.
    """
    found: dict[str, Answer] = {}
    expected = [] if plain is None else plain.operands[: len(seen.operands)]
    for operands, others in itertools.zip_longest(seen.operands, expected, fillvalue=()):
        if operands and len(found) < _MAX_RECORDED and not _is_among(operands[0], others):
            with contextlib.suppress(Exception):  # test code's own objects may have no copy, or no text
                found.setdefault(repr(operands[0])[:_MAX_TEXT], functools.partial(_copy_of, deepcopy(operands[0])))
    if not (seen.has_passed and (found or any(expected))):
        found |= {repr(value): functools.partial(_copy_of, value) for value in _AFTER_A_CHANGE}
    return {"the first": lambda first: first, **found, "its first item": _first_item}


def _first_item(value: Any) -> Any:
    return next(iter(value), None)


def _copy_of(value: Any, _: Any) -> Any:
    return deepcopy(value)


def _compare_alike(one: Trial, other: Trial) -> bool:
    return len(one.operands) == len(other.operands) and all(
        len(those) == len(same) and all(_is_among(value, [like]) for value, like in zip(those, same, strict=True))
        for those, same in zip(one.operands, other.operands, strict=True)
    )
