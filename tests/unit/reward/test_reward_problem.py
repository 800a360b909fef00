import json

import pytest
from in_sandbox import run_python

from reward.apps import score_response
from reward.limits import Limits
from reward.problem import Problem


def nested(depth: int) -> list:
    """A list within lists."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


def test_object_and_json_text_give_the_same_problem() -> None:
    input_output = {"inputs": ["1\n", ["2", "3"]], "outputs": ["2\n", ["4", "5"]]}
    problem = Problem.from_input_output(input_output, problem_id=7)
    assert problem == Problem.from_input_output(json.dumps(input_output), problem_id="7")
    assert problem.inputs == ["1\n", "2\n3"]  # APPS also has text as a list of lines
    assert problem.outputs == ["2\n", "4\n5"]
    assert problem.num_tests == 2
    with_ends = Problem.from_input_output({"inputs": [["2\n", "3\n"]], "outputs": [["4\n"]]}, problem_id=7)
    assert (with_ends.inputs, with_ends.outputs) == (["2\n3"], ["4"])


def test_arguments_as_lines_of_json() -> None:
    problem = Problem.from_input_output({"inputs": ['[1, 2]\n"a"'], "outputs": ['"b"'], "fn_name": "f"}, problem_id=1)
    assert problem.inputs == [[[1, 2], "a"]]
    assert problem.outputs == [('"b"', "b")]


def test_integer_keys_are_restored() -> None:
    problem = Problem.from_input_output(
        {"inputs": [[{"1": "x", "-2": "y"}, {"a": 1}]], "outputs": [1], "fn_name": "f"}, problem_id=1
    )
    assert problem.inputs == [[{1: "x", -2: "y"}, {"a": 1}]]


def test_wrapped_outputs_are_unwrapped_only_if_all_are_wrapped() -> None:
    wrapped = Problem.from_input_output({"inputs": [[1], [2]], "outputs": [[False], [9]], "fn_name": "f"}, problem_id=1)
    assert wrapped.outputs == [([False], False), ([9], 9)]
    lists = Problem.from_input_output({"inputs": [[1], [2]], "outputs": [[5], [5, 6]], "fn_name": "f"}, problem_id=1)
    assert lists.outputs == [([5],), ([5, 6],)]


@pytest.mark.parametrize(
    ("input_output", "message"),
    [
        ({"inputs": [], "outputs": []}, "problem p9: no tests"),
        ({"inputs": ["1"], "outputs": []}, "problem p9: 1 inputs but 0 outputs"),
        ({"inputs": [[1], [2]], "outputs": [None, None], "fn_name": "f"}, "no test expects a value"),
        ({"inputs": ["1"], "outputs": ["null"], "fn_name": "f"}, "no test expects a value"),
        ({"inputs": ["1"]}, "no list 'outputs'"),
        *(
            ({"inputs": ["1"], "outputs": ["1"], "examples": one}, "examples is ")
            for one in (5, ["0"], [1], [-1], [True])
        ),
        ("{", "input_output is not JSON"),
        ("[1]", "not an object"),
        ({"inputs": [3], "outputs": ["3"]}, "input 0 is int: give text"),
        ({"inputs": ["3"], "outputs": ["3"], "fn_name": "f x"}, "fn_name is 'f x'"),
        ({"inputs": ["{"], "outputs": ["3"], "fn_name": "f"}, "of text with one JSON value a line, is not JSON"),
        ({"inputs": [3], "outputs": ["3"], "fn_name": "f"}, "input 0 is int: give the list"),
        ({"inputs": [[3]], "outputs": [3], "fn_name": "class"}, "fn_name is 'class': give a Python name"),
        ("[" * 100_000, "input_output is nested more than 200 deep"),
        ({"inputs": [[object()]], "outputs": [1], "fn_name": "f"}, "input 0 is no JSON value"),
        ({"inputs": [[nested(200)]], "outputs": [1], "fn_name": "f"}, "input 0 is nested more than 200 deep"),
        ({"inputs": [[1]], "outputs": [nested(200)], "fn_name": "f"}, "output 0 is nested more than 200 deep"),
        ({"inputs": ["1"], "outputs": ["[" * 201 + "]" * 201], "fn_name": "f"}, "output 0 is nested more than 200"),
        ({"inputs": ["1"], "outputs": ["x" * 1_048_577]}, "output 0 has 1048577 bytes, but programs may print 1048576"),
        ({"inputs": [[1]], "outputs": [[0] * 400_000], "fn_name": "f"}, "output 0 takes 1200000 bytes, but calls may"),
        ({"inputs": ["1"], "outputs": ["\ud800"]}, "output 0 cannot be printed"),
        ({"inputs": ["1", "2"], "outputs": ["", "\n \n"]}, "no test expects any output"),
    ],
)
def test_errors_in_the_data_name_the_problem(input_output: object, message: str) -> None:
    with pytest.raises(ValueError, match="problem p9") as error:
        Problem.from_input_output(input_output, problem_id="p9")  # type: ignore[arg-type]
    assert message in str(error.value)


DEEP = """
def f(value, is_list):
    depth = 0
    while value:
        value = value[0] if is_list else value["a"]
        depth += 1
    for _ in range(depth):
        value = [value] if is_list else {"a": value}
    return value
"""


@pytest.mark.parametrize("depth", [100, 199])
@pytest.mark.parametrize("is_list", [True, False])
def test_values_as_deep_as_they_may_be_go_in_and_come_back(depth: int, is_list: bool) -> None:
    value = nested(depth)
    if not is_list:
        value = json.loads(json.dumps(value).replace("[]", "{}").replace("[", '{"a":').replace("]", "}"))
    tests = {"inputs": [[value, is_list]], "outputs": [value], "fn_name": "f"}
    problem = Problem.from_input_output(tests, problem_id=1)
    result = score_response(problem, f"```python\n{DEEP}\n```")
    assert result.outcome == "pass", result


def test_the_limit_of_outputs_is_that_of_the_answers() -> None:
    tests = {"inputs": ["1"], "outputs": ["x" * 1_048_577]}
    assert Problem.from_input_output(tests, problem_id=1, limits=Limits(output_bytes=2 << 20)).num_tests == 1


def test_package_imports_only_the_standard_library() -> None:
    modules = ("reward", "reward.score", "reward.verl_reward")
    code = (
        f"import sys\nfor name in {modules}: __import__(name)\n"
        "print(sorted({'verl', 'torch', 'ray', 'transformers', 'numpy', 'datasets'} & set(sys.modules)))"
    )
    assert run_python(code).stdout == "[]\n"
