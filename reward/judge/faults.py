"""What makes test code useless: it cannot tell answers apart, or no answer can pass it."""

import ast
from collections.abc import Sequence
from time import process_time

from reward.judge.allowed import refused_use
from reward.judge.assertions import modules_used, names_defined, names_of_the_answer
from reward.judge.careless import Tried, UntriedError, careless_answer
from reward.judge.source import compiled, parsed
from reward.judge.trials import ENOUGH_S, Differing, EqualToAll, Trial, always_raise
from reward.judge.unusable import unusable_use

# What test code means by these is the library's, which it has forgotten to import; other names may be the answer's.
_NAMES_OF_THE_LIBRARY = """
    Counter Decimal Fraction OrderedDict allclose approx array_equal assert_allclose ceil chain datetime deepcopy
    defaultdict deque floor inf isclose isinf islice isnan namedtuple nan np partial pd pi raises raw_input reduce sqrt
    timedelta unicode xrange
"""
_TOGETHER_S = 5.0
# With these, what fails on some values may pass on others.
_BRANCHES = (ast.If, ast.IfExp, ast.BoolOp, ast.Try, ast.Match, ast.While, ast.comprehension)


def faults_of_tests(
    tests: Sequence[str], fn_name: str | None, seconds: float = _TOGETHER_S
) -> list[tuple[int, str, str]]:
    """Those tests that are useless: index, kind of fault, and what causes it.

    "refused": it does what test code may not. "nameless": nothing in it can be the answer's. "vacuous": it passes
    whatever the answer's functions return. "uncallable": it calls one with what has no form as text. "unusable": it
    uses one, or what one returns, as no plain value can be used. "undefined": it uses a name of the library that it
    does not import, which an answer could define. "swallowing": it passes an answer that always raises, which tests
    that expect an error may, but not all tests of a problem. "broken": it fails before it calls any.
    Tests in which nothing is to be seen are tried with functions that return what equals everything, what differs from
    everything (true and false), and None, until some pass and some fail. If there is no fault, and `seconds` are given
    for that, `faults_together` are looked for.
    """
    faults = [(index, *fault) for index, test in enumerate(tests) if (fault := _fault_to_be_seen(test, fn_name))]
    if faults:
        return faults
    tried = {index: _try_values(test, fn_name) for index, test in enumerate(tests)}
    faults = [
        (index, *fault) for index, test in enumerate(tests) if (fault := _fault_when_tried(test, fn_name, tried[index]))
    ]
    if seconds == 0 or len(faults) == len(tests) or any(kind != "swallowing" for _, kind, _ in faults):
        return faults
    return faults + faults_together(tests, fn_name, seconds, tried)


def faults_together(
    tests: Sequence[str], fn_name: str | None, seconds: float, tried: Tried | None = None
) -> list[tuple[int, str, str]]:
    """What makes the tests useless together, though none is alone, as above (of the first of them).

    "careless": all pass an answer that does not look at what it is asked. "untried": there is no time to see that.

    Args:
        tests: of one problem.
        fn_name: the function that they call `candidate`.
        seconds: CPU seconds for this.
        tried: trials of each.
    """
    try:
        what = careless_answer(tests, fn_name, seconds, tried or {})
    except UntriedError as error:
        return [(0, "untried", str(error))]
    return [(0, "careless", what)] if what else []


def _fault_to_be_seen(test_code: str, fn_name: str | None) -> tuple[str, str] | None:
    try:
        compiled(test_code)
    except (SyntaxError, ValueError) as error:  # what is none of a parser's business
        return "broken", str(error)
    tree = parsed(test_code)
    names = set(names_of_the_answer(test_code, fn_name))
    modules = (names & modules_used(test_code)) - {fn_name}
    if use := refused_use(tree, names_defined(tree) | {fn_name or ""}, modules):
        return "refused", use
    if not any(map(_may_fail, ast.walk(tree))):
        return "vacuous", ""
    if not names - modules - {"candidate" if fn_name is None else ""}:
        return "nameless", ""
    functions = (names | {"candidate"}) - modules - (names_defined(tree) - {"candidate"})
    if use := unusable_use(tree, functions - set(_NAMES_OF_THE_LIBRARY.split())):
        return "unusable", use
    return None


def _may_fail(node: ast.AST) -> bool:
    """Whether a part of test code can make it fail that is meant to."""
    if isinstance(node, ast.Assert):
        return not (isinstance(node.test, ast.Tuple) and node.test.elts)  # `assert (x == 1, "text")` cannot
    if isinstance(node, (ast.Name, ast.Attribute)):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name.startswith(("assert", "raises", "fail")) or name in ("exit", "quit")
    return isinstance(node, ast.Raise)


def _try_values(test_code: str, fn_name: str | None) -> list[Trial]:
    trials: list[Trial] = []
    started = process_time()
    for make in (EqualToAll, lambda: Differing(truth=True), lambda: Differing(truth=False), lambda: None):
        trials.append(Trial(lambda *_, make=make, **__: make(), test_code, fn_name))
        has_passed = {trial.has_passed for trial in trials}
        if len(has_passed) == 2 or (False in has_passed and process_time() - started > ENOUGH_S):
            break  # it is not vacuous, and the rest would show little more
    return trials


def _fault_when_tried(test_code: str, fn_name: str | None, trials: list[Trial]) -> tuple[str, str] | None:
    has_passed = {trial.has_passed for trial in trials}
    uncallable = [trial.refused for trial in trials if trial.refused]
    unusable = [trial.misused for trial in trials if trial.misused]
    if uncallable:
        return "uncallable", uncallable[0]
    if names := _names_of_the_library(test_code, fn_name):
        return "undefined", ", ".join(names)
    if unusable and not _has_branches(test_code):
        return "unusable", unusable[0]
    if has_passed == {True}:
        return "vacuous", ""
    if all(trial.broken for trial in trials):
        return "broken", trials[0].broken
    return ("swallowing", "") if _swallows_errors(test_code, fn_name, trials[0]) else None


def _swallows_errors(test_code: str, fn_name: str | None, equal_to_all: "Trial") -> bool:
    """Whether test code that looks at what the answer returns passes one that always raises."""
    if not any(isinstance(node, (ast.ExceptHandler, ast.withitem)) for node in ast.walk(parsed(test_code))):
        return False
    if not Trial(always_raise, test_code, fn_name).has_passed:
        return False
    return (
        equal_to_all.looks_at_values
        or Trial(lambda *given, **_: given[0] if given else None, test_code, fn_name).looks_at_values
    )


def _has_branches(test_code: str) -> bool:
    tree = parsed(test_code)
    tests = [node.test for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    all_hold = {id(test) for test in tests if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)}
    return any(
        isinstance(node, _BRANCHES)
        and (not isinstance(node, ast.comprehension) or node.ifs)
        and id(node) not in all_hold
        for node in ast.walk(tree)
    )


def _names_of_the_library(test_code: str, fn_name: str | None) -> list[str]:
    """Names of the library among those that the answer would have to define beside the function that is asked for."""
    names = set(names_of_the_answer(test_code, fn_name)) - {"candidate"} - (modules_used(test_code) - {fn_name})
    known = sorted((names - {fn_name}) & set(_NAMES_OF_THE_LIBRARY.split()))
    return known if len(known) < len(names) else []  # else it asks for a function of that name
