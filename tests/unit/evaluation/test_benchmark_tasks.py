from collections.abc import Callable
from typing import Any

import pytest

from recipe.evaluation.benchmarks import Task, load_tasks
from recipe.evaluation.prompts import PROMPTS
from recipe.evaluation.samples import Sample
from recipe.evaluation.scoring import limits_of, pass_at, score_samples
from reward.apps import Verdict
from reward.limits import Limits
from reward.sandbox import Sandbox

FORMATS = ("humaneval", "humaneval+", "humaneval+ hub", "mbpp", "mbpp+", "mbpp+ hub")
Load = Callable[[str], list[Task]]


def verdicts(samples: list[Sample], sandbox: Sandbox, limits: Limits | None = None) -> list[str]:
    results = score_samples(samples, sandbox=sandbox, limits=limits or limits_of(4.0), num_workers=2)
    return [result.verdict.value for result in results]


@pytest.mark.parametrize("name", FORMATS)
def test_reference_passes_and_nothing_does_not(name: str, load: Load, sandbox: Sandbox) -> None:
    tasks = load(name)
    assert len(tasks) in (1, 2, 3)
    samples = [Sample(task=task, text="", program=text) for task in tasks for text in (task.reference, task.prompt)]
    assert [verdict == "passed" for verdict in verdicts(samples, sandbox)] == [True, False] * len(tasks)


def test_inputs_of_both_formats(load: Load) -> None:
    released, hub = load("humaneval+"), load("humaneval+ hub")
    assert released[0].calls is not None and hub[0].calls is not None
    assert released[0].calls.inputs == [[[1.0, 2.0], 1.5], [[], 3.0], [[0.1], 0.2]]
    assert hub[0].calls.inputs == [[[1.0, 2.0], 1.5], [[], 3.0], [[float("inf")], 0.2]]
    assert released[1].calls == hub[1].calls  # with the tolerance that the test code compares with
    mbpp = load("mbpp+ hub")[0]
    assert mbpp.calls is not None
    assert (mbpp.task_id, mbpp.calls.fn_name, mbpp.calls.atol) == ("Mbpp/11", "_sum", 0.5)
    assert mbpp.question == "Write a function to add.\nassert _sum(1, 2) == 3"
    assert load("mbpp+")[0].question == "Write a function to swap every pair.\nassert swap_all(((1, 2),)) == [(2, 1)]"


def test_benchmark_without_plus_leaves_out_the_added_inputs(load: Load, write: Callable[..., str]) -> None:
    load("humaneval+")
    calls = load_tasks("humaneval", write([], "other.jsonl").replace("other.jsonl", "HumanEvalPlus.jsonl.gz"))[0].calls
    assert calls is not None and calls.inputs == [[[1.0, 2.0], 1.5]]


def test_mbpp_counts_its_test_tasks_only(load: Load) -> None:
    (task,) = load("mbpp")  # task 600 is for training
    assert task.test_code[2] == "size = 5\nassert total((5,)) == size"
    assert task.prompt.endswith('assert total((5,)) == size\n"""\n')


WRONG = {
    ("mbpp+", 0): [
        ("def swap_all(pairs): return [(b, a) for a, b in pairs]", "passed"),
        ("def swap_all(pairs): return [[b, a] for a, b in pairs]", "wrong"),
        ("def swap_all(pairs): return [pair[::-1] for pair in pairs][:1]", "wrong"),
        ("def swap_all(pairs): return [(2, 1)]", "wrong"),
        ("def swap(pairs): return pairs", "runtime_error"),
        ("def swap_all(pairs) return pairs", "compile_error"),
        ("def swap_all(pairs):\n    while True: pass", "time_out"),
        ("def swap_all(pairs): return map(tuple, pairs)", "wrong"),
    ],
    ("mbpp+", 1): [("def share(a, b): return sorted(set(a) & set(b))[::-1]", "passed")],
    ("mbpp+", 2): [
        ("def has_x(text): return 'x' in text", "passed"),
        ("def has_x(text): return 1 if 'x' in text else None", "passed"),
        ("def has_x(text): return True", "wrong"),
        ("def has_x(text): return text", "wrong"),
    ],
    ("humaneval+ hub", 1): [("def find_zero(xs): return 1e9", "wrong")],
    # No name is there that the program has not imported, as LeetCode's solutions find them.
    ("humaneval", 1): [
        ("def swap(pair): return tuple(reversed(pair))", "passed"),
        ("def swap(pair): return tuple(deque(pair))[::-1]", "runtime_error"),
        ("class Solution:\n    def swap(self, pair): return pair[::-1]", "runtime_error"),
    ],
}


@pytest.mark.parametrize("key", WRONG)
def test_right_and_wrong_answers(key: tuple[str, int], load: Load, sandbox: Sandbox) -> None:
    task = load(key[0])[key[1]]
    samples = [Sample(task=task, text="", program=code) for code, _ in WRONG[key]]
    assert verdicts(samples, sandbox, limits_of(1.5)) == [verdict for _, verdict in WRONG[key]]


HOSTILE = [
    """    class Yes(list):
        __eq__ = __ne__ = lambda *a: True
        __hash__ = list.__hash__
    return Yes()
""",
    """    return None
import builtins
builtins.AssertionError = builtins.isinstance = builtins.bool = lambda *a: True
""",
    """    return [0 for x in numbers]
def double(x): return 0
def check(candidate): pass
""",
    """    import sys
    for name in list(sys.modules): sys.modules[name] = None
    return [0]
""",
    """    import os
    for fd in range(3, 64):
        try: os.write(fd, b'{"value": true}')
        except OSError: pass
""",
    "    import os\n    os._exit(0)\n",
    "    raise SystemExit(0)\n",
    "    raise AssertionError\n",
    "    return scale\n",
]


@pytest.mark.parametrize("name", ["humaneval", "humaneval+"])
def test_hostile_completions_do_not_pass(name: str, load: Load, sandbox: Sandbox) -> None:
    task = load(name)[0]
    samples = [Sample(task=task, text=text, program=task.prompt + text) for text in HOSTILE]
    assert "passed" not in verdicts(samples, sandbox)


def test_a_sample_stops_at_its_first_failed_test(load: Load, sandbox: Sandbox) -> None:
    task = load("mbpp+")[0]
    sample = Sample(task=task, text="", program="def swap_all(pairs): return [(2, 1)]")
    (result,) = score_samples([sample], sandbox=sandbox, limits=limits_of(4.0), num_workers=1)
    assert (result.num_passed, result.num_tests, result.detail) == (1, 3, "test 1: wrong answer")


def test_a_test_has_four_times_the_reference_s_time(load: Load, sandbox: Sandbox, write: Callable[..., str]) -> None:
    record: dict[str, Any] = {
        "task_id": "Mbpp/11",
        "prompt": "",
        "canonical_solution": "import time\ndef wait(x):\n    time.sleep(0.2)\n    return x",
        "assertion": "assert wait(1) == 1",
        "entry_point": "wait",
        "base_input": [[1]],
        "plus_input": [],
        "atol": 0,
    }
    task = load_tasks("mbpp+", write([record], "slow.jsonl"))[0]
    programs = [record["canonical_solution"].replace("0.2", seconds) for seconds in ("0.4", "30")]
    samples = [Sample(task=task, text="", program=program) for program in programs]
    assert verdicts(samples, sandbox, limits_of(0.05)) == ["passed", "time_out"]


def test_a_task_that_no_answer_can_pass_counts_all_the_same(
    load: Load, sandbox: Sandbox, write: Callable[..., str]
) -> None:
    record = {"task_id": 11, "text": "t", "code": "", "test_list": ["assert f(3) == 3", "assert f(int) == 4"]}
    (task,) = load_tasks("mbpp", write([record], "uncallable.jsonl"))
    sample = Sample(task=task, text="", program="def f(x): return x")
    (result,) = score_samples([sample], sandbox=sandbox, limits=limits_of(4.0), num_workers=1)
    assert (result.verdict, result.num_passed, result.num_tests) == (Verdict.WRONG, 1, 2)


def test_what_cannot_be_run_is_no_failure(load: Load, sandbox: Sandbox) -> None:
    task = load("humaneval")[0]
    sample = Sample(task=task, text="", program=task.reference)
    limits = Limits(startup_s=1e-6, infra_attempts=1)
    results = score_samples([sample], sandbox=sandbox, limits=limits, num_workers=1)
    assert results[0].verdict is Verdict.INFRA_ERROR
    assert pass_at(results, [1]) == {1: None}


def test_prompts_and_programs(load: Load, sandbox: Sandbox) -> None:
    scale, mbpp = load("humaneval")[0], load("mbpp")[0]
    chat, completion = PROMPTS["chat"], PROMPTS["completion"]
    assert scale.prompt.strip() in chat.text(scale) and "assert total(()) == 0" in chat.text(mbpp)
    answer = "Sure:\n```python\ndef scale(numbers, factor):\n    return [double(factor) * x for x in numbers]\n```"
    programs = [
        chat.program(scale, answer),  # with the prompt's helper
        chat.program(scale, f"{answer}\nIts use:\n```python\nprint(scale([1], 2))\n```"),
        chat.program(scale, "I do not know."),
        completion.program(scale, "    return [2 * factor * x for x in numbers]"),
        completion.program(mbpp, "def total(values):\n    return sum(values)"),
    ]
    tasks = [*[scale] * 4, mbpp]
    samples = [Sample(task=task, text="", program=code) for task, code in zip(tasks, programs, strict=True)]
    assert verdicts(samples, sandbox) == ["passed", "passed", "compile_error", "passed", "passed"]
    assert "\ndef " in completion.stops(scale) and "\ndef " not in completion.stops(mbpp)
    assert chat.stops(scale) == ()


RECORD = {"task_id": "HumanEval/0", "prompt": "", "canonical_solution": "", "entry_point": "f"}


@pytest.mark.parametrize(
    ("benchmark", "rows", "message"),
    [
        ("humaneval", [{"task_id": 0}], "records.jsonl line 1: no 'prompt' in the record"),
        ("humaneval", [{**RECORD, "test": "def check("}], "line 1: .*never closed"),
        ("humaneval+", [{**RECORD, "test": "def check(candidate): pass"}], "no literal `inputs`"),
        ("humaneval", [], "no task of humaneval"),
        ("humaneval", [{**RECORD, "test": ""}] * 2, "line 2: task HumanEval/0 occurs twice"),
        ("mbpp", [{"task_id": 600}], "no task of mbpp"),
        ("mbpp", [{"task_id": "x"}], "line 1: invalid literal"),
        ("mbpp", [{"task_id": 11, "text": "t", "code": "", "test_list": []}], "line 1: no tests"),
    ],
)
def test_bad_records_are_named(
    benchmark: str, rows: list[dict[str, Any]], message: str, write: Callable[..., str]
) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks(benchmark, write(rows, "records.jsonl"))


def test_reference_that_fails_is_named(load: Load, sandbox: Sandbox, write: Callable[..., str]) -> None:
    record = {
        **RECORD,
        "base_input": [[1]],
        "plus_input": [],
        "atol": 0,
        "canonical_solution": "def f(x): return 1 / 0",
    }
    (task,) = load_tasks("humaneval+", write([record], "records.jsonl"))
    with pytest.raises(ValueError, match="HumanEval/0: its reference solution fails .*ZeroDivisionError"):
        score_samples([Sample(task=task, text="", program="")], sandbox=sandbox, limits=limits_of(4.0), num_workers=1)


def test_inputs_with_values_too_large_to_return_are_left_out(sandbox: Sandbox, write: Callable[..., str]) -> None:
    record = {**RECORD, "canonical_solution": "def f(n): return ['x' * 10] * n"}
    plus = {"base_input": [[1], [2_000_000]], "plus_input": [[3]], "atol": 0}
    (task,) = load_tasks("humaneval+", write([{**record, **plus}], "records.jsonl"))
    sample = Sample(task=task, text="", program=task.reference)
    (result,) = score_samples([sample], sandbox=sandbox, limits=limits_of(4.0), num_workers=1)
    assert (result.verdict, result.num_tests) == (Verdict.PASSED, 2)
