"""A problem in the format of the APPS data set, or with test code as in HumanEval and MBPP, and its checks."""

import ast
import contextlib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from keyword import iskeyword
from typing import Any

from reward.judge import JudgeLostError, UnjudgeableError, ask
from reward.judge.assertions import USELESS, load_modules, passes_useless
from reward.limits import Limits
from reward.sandbox.jail.values import arguments_text

_MAX_DEPTH = 200  # of values: the steps that carry them take several of the interpreter's 1,000 frames a level
_DEEP = f"nested more than {_MAX_DEPTH} deep: give plainer values, or leave the problem out"


@dataclass(slots=True, kw_only=True, frozen=True)
class Problem:
    """One problem; build it with `from_input_output`, which checks it.

    Example: `Problem(problem_id="7", inputs=[[1, 2]], outputs=[3], fn_name="add")` is call-based: test 0 calls
    `add(1, 2)` and expects 3. With `fn_name=None` the inputs and outputs are standard input and output. With
    `kind="test_code"` an input is assertions such as `assert add(1, 2) == 3`.
    """

    problem_id: str  # names the problem in every error
    inputs: list[Any]  # [num_tests] stdin: text; call: list of arguments; test_code: source of assertions
    outputs: list[Any]  # [num_tests] stdin: text; call: tuple of the values accepted as right; test_code: None
    kind: str = "stdin"  # a key of `kinds.KINDS`
    fn_name: str | None = None  # call: function, or method of class Solution; test_code: the `candidate`
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
        limits: Limits | None = None,
    ) -> "Problem":
        """Check and normalise an APPS `input_output`.

        Args:
            input_output: object, or its JSON text, with `inputs`, `outputs` and, if call-based, `fn_name`; or with
                `test_code`, a list of assertions (one test each), and `fn_name` if they call it `candidate`. `examples`
                are the indices of the tests that the question shows, where there are any.
            problem_id: names the problem in errors.
            limits: under which answers will run; None: the defaults.

        Raises:
            ValueError: no tests, unequal numbers of inputs and outputs, a malformed test, or one that every answer or
                none can pass; it names the problem and what to fix. Such a problem cannot be scored, so check the
                data before training.
            JudgeLostError: no judge could try the test code, by no fault of its own; it names the problem.
        """
        where = f"problem {problem_id}"
        limits = limits or Limits()
        fields = _as_object(input_output, where)
        fn_name = None if fields.get("fn_name") == "" else fields.get("fn_name")
        if fn_name is not None and not (isinstance(fn_name, str) and fn_name.isidentifier() and not iskeyword(fn_name)):
            raise ValueError(f"{where}: fn_name is {fn_name!r}: give a Python name, or none for a stdin problem")
        problem = functools.partial(cls, problem_id=str(problem_id), fn_name=fn_name)
        if "test_code" in fields:
            tests = _as_test_code(fields["test_code"], fn_name, where, limits)
            return problem(inputs=tests, outputs=[None] * len(tests), kind="test_code")
        inputs, outputs = fields["inputs"], fields["outputs"]
        examples = _as_examples(fields.get("examples"), len(inputs), where)
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
        return problem(inputs=arguments, outputs=accepted, kind="call", examples=examples)


def _as_examples(value: object, num_tests: int, where: str) -> tuple[int, ...]:
    """Return the tests that the question shows, by their place."""
    given = [] if value is None else value
    if not isinstance(given, list) or any(type(one) is not int or not 0 <= one < num_tests for one in given):
        raise ValueError(f"{where}: examples is {value!r}: give a list of places of tests, from 0")
    return tuple(given)


def read_json(text: str, where: str) -> Any:
    """Return the value in JSON text; ValueError, beginning with `where`: it is none, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:  # some 1,000 deep in Python 3.11, later ones go deeper
        raise ValueError(f"{where} is {_DEEP}") from error
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where} is not JSON ({error}): give JSON text") from error


def _as_object(input_output: str | Mapping[str, Any], where: str) -> Mapping[str, Any]:
    if isinstance(input_output, str):
        input_output = read_json(input_output, f"{where}: input_output")
    if not isinstance(input_output, Mapping):
        raise ValueError(f"{where}: input_output is not an object: give one with the keys inputs and outputs")
    for key in ("inputs", "outputs") if "test_code" not in input_output else ("test_code",):
        if not isinstance(input_output.get(key), list):
            raise ValueError(f"{where}: input_output has no list {key!r}: give one entry per test")
    return input_output


def _as_test_code(tests: list[Any], fn_name: str | None, where: str, limits: Limits) -> list[str]:
    """Return the assertions, at least one; refuse assertions that do not parse, or that a wrong answer passes."""
    if not tests:
        raise ValueError(f"{where}: no tests: give at least one piece of test_code, or leave the problem out")
    for index, test in enumerate(tests):
        if not isinstance(test, str):
            raise ValueError(f"{where}: test_code {index} is {type(test).__name__}: give Python source")
    try:
        wrong = _wrong_with_test_code(tuple(tests), fn_name, limits)
    except JudgeLostError as error:
        raise JudgeLostError(f"{where}: test_code could not be tried ({error})") from error
    if wrong:
        raise ValueError(f"{where}: {wrong}")
    return tests


@functools.lru_cache(maxsize=1 << 10)  # a problem is read again for every answer; its tests may be long
def _wrong_with_test_code(tests: tuple[str, ...], fn_name: str | None, limits: Limits) -> str:
    """Return which assertion does not parse, or which of `USELESS` passes them all; "" if neither is the case."""
    for index, test in enumerate(tests):
        try:
            ast.parse(test)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return f"test_code {index} is no Python ({error}): give Python source"
    share = replace(limits, judge_s=limits.judge_s / len(USELESS))
    for returned in USELESS:
        question = functools.partial(passes_useless, tests, fn_name, returned)
        with contextlib.suppress(UnjudgeableError):  # on values that they are not made for tests may run for ever
            if ask(question, limits=share, load=functools.partial(load_modules, "\n".join(tests))).value:
                return (
                    f"test_code passes an answer that returns {returned} whatever it is asked: let it assert more of "
                    "the answer (HumanEval's wants a last line check(candidate)), or leave the problem out"
                )
    return ""


def _check_printable(outputs: list[str], where: str, limits: Limits) -> None:
    """Refuse text that no program can print."""
    for index, text in enumerate(outputs):
        try:
            num_bytes = len(text.rstrip().encode())
        except UnicodeEncodeError as error:
            raise ValueError(f"{where}: output {index} cannot be printed ({error}): give Unicode text") from error
        _check_size(num_bytes, f"{where}: output {index} has {num_bytes} bytes, but programs may print", limits)


def _check_size(num_bytes: int, said: str, limits: Limits) -> None:
    if num_bytes > limits.output_bytes:
        raise ValueError(
            f"{said} {limits.output_bytes}: set limits.output_bytes (and limits.file_bytes) higher, or leave the "
            "problem out"
        )


def _check_value(value: Any, where: str) -> str:
    """Return the value as JSON text; refuse what no call can be given or return."""
    try:
        text = json.dumps(value)
        arguments_text([value])
        if _depth(value) <= _MAX_DEPTH:
            return text
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} is no JSON value ({error}): give plain ones") from error
    except RecursionError:
        pass
    raise ValueError(f"{where} is {_DEEP}")


def _depth(value: Any) -> int:
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else None
    return 0 if items is None else 1 + max(map(_depth, items), default=0)


def _check_returnable(accepted: list[tuple[Any, ...]], where: str, limits: Limits) -> None:
    """Refuse values that no call can return, and problems that a function which does nothing would solve."""
    if all(None in values for values in accepted):
        raise ValueError(
            f"{where}: no test expects a value, so that a function that does nothing passes: "
            "give at least one that does, or leave the problem out"
        )
    for index, values in enumerate(accepted):
        num_bytes = min(len(_check_value(value, f"{where}: output {index}")) for value in values)
        _check_size(num_bytes, f"{where}: output {index} takes {num_bytes} bytes, but calls may return", limits)


def _as_text(value: object, where: str) -> str:
    """Return standard input or output as text with Linux line ends; APPS also gives a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(line.removesuffix("\n").removesuffix("\r") for line in value)
    if isinstance(value, str):
        return value.replace("\r\n", "\n")
    raise ValueError(f"{where} is {type(value).__name__}: give text (or a list of lines), or set fn_name if call-based")


def _as_arguments(value: object, where: str) -> list[Any]:
    """Return the arguments of a call, from a list or from JSON text with one argument a line."""
    if isinstance(value, str):
        value = [read_json(line, f"{where}, of text with one JSON value a line,") for line in value.strip().split("\n")]
    if not isinstance(value, list):
        raise ValueError(f"{where} is {type(value).__name__}: give the list of the call's arguments")
    for argument in value:
        _check_value(argument, where)
    return [_with_int_keys(argument) for argument in value]


def _with_int_keys(argument: Any) -> Any:
    """Undo JSON's conversion of integer keys to text, as the APPS harness does."""
    is_dict = isinstance(argument, dict) and all(isinstance(key, str) for key in argument)
    if not is_dict or not all(key.removeprefix("-").isdecimal() for key in argument):
        return argument
    return {int(key): value for key, value in argument.items()}


def _accepted_values(inputs: list[Any], outputs: list[Any]) -> list[tuple[Any, ...]]:
    """Return the values accepted as right, for every test of a call-based problem.

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
