"""A problem in the format of the APPS data set, or with test code as in HumanEval and MBPP, and its checks."""

import ast
import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reward.judge import JudgeLostError, UnjudgeableError, ask
from reward.judge.fault_texts import FAULT_TEXTS
from reward.limits import Limits
from reward.sandbox.jail.values import arguments_text
from reward.solution_class import with_functions, without_class

_MAX_DEPTH = 200  # of values: the steps that carry them take several of the interpreter's 1,000 frames a level


class UncallableError(ValueError):
    """Test code calls the answer with a value that has no form as text, or wants one of it: no answer can pass."""


@dataclass(slots=True, kw_only=True, frozen=True)
class Problem:
    """One problem; build it with `from_input_output`, which checks it.

    Example: `Problem(problem_id="7", inputs=[[1, 2]], outputs=[3], fn_name="add")` is call-based: test 0 calls
    `add(1, 2)` and expects 3. With `fn_name=None` the inputs and outputs are standard input and output. With
    `kind="test_code"` an input is assertions such as `assert add(1, 2) == 3`; with `kind="value"` the test calls
    `add(1, 2)` and a function of the caller's, which `from_input_output` does not build, judges the returned value.
    """

    problem_id: str  # names the problem in every error
    inputs: list[Any]  # [num_tests] stdin: text; call, value: list of arguments; test_code: source of assertions
    # [num_tests] stdin: text; call: tuple of the values accepted as right; test_code: None; value: judge, value -> bool
    outputs: list[Any]
    kind: str = "stdin"  # a key of `kinds.KINDS`
    fn_name: str | None = (
        None  # call, value: function to call, or with `leetcode` a method of class Solution; test_code: the `candidate`
    )
    leetcode: bool = True  # call, test_code: answers find names without import, and class Solution, as on LeetCode
    starter_code: str = ""  # what the question gives the solver to start from; not needed for scoring
    examples: tuple[int, ...] = ()  # stdin, call: tests that the question shows

    @property
    def num_tests(self) -> int:
        """Number of tests, at least 1."""
        return len(self.inputs)

    @classmethod
    def from_input_output(
        cls,
        input_output: str | Mapping[str, Any],
        *,
        problem_id: object,
        starter_code: str = "",
        limits: Limits | None = None,
    ) -> "Problem":
        """Check and normalise an APPS `input_output`.

        Args:
            input_output: object, or its JSON text, with `inputs`, `outputs` and, if call-based, `fn_name`; or with
                `test_code`, a list of assertions (one test each), and `fn_name` if they call it `candidate`. `examples`
                are the indices of the tests that the question shows, where there are any.
            problem_id: names the problem in errors.
            starter_code: as in the data set.
            limits: under which answers will run; None: the defaults.

        Raises:
            ValueError: no tests, unequal numbers of inputs and outputs, a malformed test, or one that every answer or
                none can pass; it names the problem and what to fix. Such a problem cannot be scored, so check the
                data before training.
            UncallableError: a ValueError; test code hands the answer functions, types or objects.
            JudgeLostError: no judge could try the test code, by no fault of its own; it names the problem.
        """
        where = f"problem {problem_id}"
        limits = limits or Limits()
        fields = _as_object(input_output, where)
        fn_name = _as_name(fields.get("fn_name") or None, where)
        problem = functools.partial(cls, problem_id=str(problem_id), fn_name=fn_name, starter_code=starter_code)
        if "test_code" in fields:
            tests = _as_test_code(fields["test_code"], fn_name, where, limits)
            return problem(inputs=tests, outputs=[None] * len(tests), kind="test_code")
        inputs, outputs, examples = fields["inputs"], fields["outputs"], tuple(fields.get("examples") or ())
        if len(inputs) != len(outputs):
            raise ValueError(
                f"{where}: {len(inputs)} inputs but {len(outputs)} outputs: every test needs one input and one output"
            )
        if not inputs:
            raise ValueError(f"{where}: no tests: give at least one input and output, or leave the problem out")
        if fn_name is None:
            texts = [_as_text(value, f"{where}: output {index}") for index, value in enumerate(outputs)]
            _check_printable(texts, where, limits)
            if not any(text.strip() for text in texts):
                raise ValueError(
                    f"{where}: no test expects any output, so that an answer of nothing passes: "
                    "give at least one that does, or leave the problem out"
                )
            stdins = [_as_text(value, f"{where}: input {index}") for index, value in enumerate(inputs)]
            return problem(inputs=stdins, outputs=texts, examples=examples)
        accepted = _accepted_values(inputs, outputs)
        _check_returnable(accepted, where, limits)
        arguments = [_as_arguments(value, f"{where}: input {index}") for index, value in enumerate(inputs)]
        _check_arguments(arguments, where)
        return problem(inputs=arguments, outputs=accepted, kind="call", examples=examples)


def _as_object(input_output: str | Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if isinstance(input_output, str):
        try:
            input_output = json.loads(input_output)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where}: input_output is not JSON ({error}): give an object or its JSON text") from error
    if not isinstance(input_output, Mapping):
        raise ValueError(f"{where}: input_output is not an object: give one with the keys inputs and outputs")
    for key in ("inputs", "outputs") if "test_code" not in input_output else ("test_code",):
        if not isinstance(input_output.get(key), list):
            raise ValueError(f"{where}: input_output has no list {key!r}: give one entry per test")
    return input_output


def _as_name(fn_name: object, where: str) -> str | None:
    if fn_name is None:
        return None
    if isinstance(fn_name, str) and without_class(fn_name).isidentifier():
        return without_class(fn_name)
    raise ValueError(f"{where}: fn_name is {fn_name!r}: give a Python name, or leave it out for a stdin problem")


def _as_test_code(tests: list[Any], fn_name: str | None, where: str, limits: Limits) -> list[str]:
    """Assertions that parse, at least one, none of which every answer passes."""
    read: list[str] = []
    if not tests:
        raise ValueError(f"{where}: no tests: give at least one piece of test_code, or leave the problem out")
    for index, test in enumerate(tests):
        if not isinstance(test, str):
            raise ValueError(f"{where}: test_code {index} is {type(test).__name__}: give Python source")
        try:
            read.append(with_functions(test, ast.parse(test)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(f"{where}: test_code {index} is no Python ({error}): give Python source") from error
    try:
        faults = _faults_of_tests(tuple(read), fn_name, limits)
    except JudgeLostError as error:
        raise JudgeLostError(f"{where}: test_code could not be tried ({error})") from error
    num_swallowing = sum(kind == "swallowing" for _, kind, _ in faults)
    for index, kind, cause in faults:
        if kind == "swallowing" and num_swallowing < len(tests):
            continue
        error_kind = UncallableError if kind in ("uncallable", "unusable") else ValueError
        raise error_kind(f"{where}: test_code {index} {FAULT_TEXTS[kind].format(cause)}")
    return read


@functools.lru_cache(maxsize=1 << 16)  # a problem is read anew for every answer
def _faults_of_tests(tests: tuple[str, ...], fn_name: str | None, limits: Limits) -> list[tuple[int, str, str]]:
    """Index, kind (of `FAULT_TEXTS`) and cause of what makes tests useless; raises JudgeLostError."""
    seconds = limits.judge_s / 2  # for what answers pass them all; the rest is for trials of each
    try:
        return ask("faults_of_tests", tests, fn_name, seconds, limits=limits).value
    except UnjudgeableError:  # with values that they are not made for they may run for ever
        share = replace(limits, judge_s=limits.judge_s / len(tests))
        faults = [
            (index, *fault) for index, test in enumerate(tests) for fault in _faults_of_test(test, fn_name, share)
        ]
    if len(faults) == len(tests) or any(kind != "swallowing" for _, kind, _ in faults):
        return faults
    try:
        return faults + ask("faults_together", tests, fn_name, seconds, limits=limits).value
    except UnjudgeableError as error:
        return [*faults, (0, "untried", str(error))]


def _faults_of_test(test: str, fn_name: str | None, limits: Limits) -> list[tuple[str, str]]:
    """Kind and cause of what makes a test useless alone; raises JudgeLostError."""
    try:
        return [(kind, cause) for _, kind, cause in ask("faults_of_tests", [test], fn_name, 0.0, limits=limits).value]
    except UnjudgeableError as error:
        return [("crash", str(error))] if error.is_crash else []


def _check_printable(outputs: list[str], where: str, limits: Limits) -> None:
    """Refuse text that no program can print."""
    for index, text in enumerate(outputs):
        try:
            num_bytes = len(text.rstrip().encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: output {index} cannot be printed ({error}): give Unicode text") from error
        if num_bytes > limits.output_bytes:
            raise ValueError(
                f"{where}: output {index} has {num_bytes} bytes, but programs may print {limits.output_bytes}: "
                "set limits.output_bytes (and limits.file_bytes) higher, or leave the problem out"
            )


def _check_arguments(arguments: list[list[Any]], where: str) -> None:
    """Refuse what no call can be given."""
    for index, values in enumerate(arguments):
        try:
            arguments_text(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{where}: input {index} is no JSON value ({error}): give plain ones, less deep"
            ) from error
        for value in values:
            _check_depth(value, f"{where}: input {index}")


def _check_depth(value: Any, where: str) -> None:
    """Refuse values nested deeper than any answer could be given or return them."""
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [item for outer in level for item in _items(outer)]
        if not level:
            return
    if any(isinstance(item, (list, tuple, dict)) for item in level):
        raise ValueError(
            f"{where} is nested more than {_MAX_DEPTH} deep: give plainer values, or leave the problem out"
        )


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else []


def _check_returnable(accepted: list[tuple[Any, ...]], where: str, limits: Limits) -> None:
    """Refuse values that no call can return, and those that a function returns which does nothing."""
    if all(None in values for values in accepted):
        raise ValueError(
            f"{where}: no test expects a value, so that a function that does nothing passes: "
            "give at least one that does, or leave the problem out"
        )
    for index, values in enumerate(accepted):
        try:
            num_bytes = min(len(json.dumps(value)) for value in values)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"{where}: output {index} is no JSON value ({error}): give plain ones, less deep"
            ) from error
        for value in values:
            _check_depth(value, f"{where}: output {index}")
        if num_bytes > limits.output_bytes:
            raise ValueError(
                f"{where}: output {index} takes {num_bytes} bytes, but calls may return {limits.output_bytes}: "
                "set limits.output_bytes (and limits.file_bytes) higher, or leave the problem out"
            )


def _as_text(value: object, where: str) -> str:
    """Standard input or output as text; APPS also has it as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(line.removesuffix("\n") for line in value)
    raise ValueError(f"{where} is {type(value).__name__}: give text (or a list of lines), or set fn_name if call-based")


def _as_arguments(value: object, where: str) -> list[Any]:
    """Arguments of a call: a list, or JSON text with one argument a line."""
    if isinstance(value, str):
        try:
            value = [json.loads(line) for line in value.strip().split("\n")]
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{where} is text but not one JSON value a line ({error}): give a list") from error
    if not isinstance(value, list):
        raise ValueError(f"{where} is {type(value).__name__}: give the list of the call's arguments")
    return [_with_int_keys(argument) for argument in value]


def _with_int_keys(argument: Any) -> Any:
    """Undo JSON's conversion of integer keys to text, as the APPS harness does."""
    if isinstance(argument, dict) and argument and all(isinstance(key, str) and _is_int(key) for key in argument):
        return {int(key): value for key, value in argument.items()}
    return argument


def _is_int(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _accepted_values(inputs: list[Any], outputs: list[Any]) -> list[tuple[Any, ...]]:
    """The values accepted as right, for every test of a call-based problem.

    APPS has outputs plain (`9`) and wrapped in a list of one (`[false]`), the same way throughout a problem: where
    every output is a list of one, its content is accepted too. An input given as JSON text may have its output as
    JSON text, which is then accepted as text and parsed.
    """
    wrapped = all(isinstance(output, list) and len(output) == 1 for output in outputs)
    accepted = []
    for value, output in zip(inputs, outputs, strict=True):
        values = [output, output[0]] if wrapped else [output]
        if isinstance(value, str) and isinstance(output, str):
            with contextlib.suppress(ValueError, RecursionError):  # plain text stands for itself
                values.append(json.loads(output))
        accepted.append(tuple(values))
    return accepted
