"""Runs samples in the sandbox: a sample passes when every test of its task does."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from recipe.evaluation.benchmarks import Task
from recipe.evaluation.pass_at_k import mean_pass_at_k
from recipe.evaluation.plus_tests import called_suffix, problem_of
from recipe.evaluation.samples import Sample
from reward.apps import Verdict, run_tests
from reward.grading import Graded
from reward.limits import Limits
from reward.problem import Problem, UncallableError
from reward.sandbox import Sandbox

SOLUTION_S = 600.0  # wall seconds of all tests of one sample; the time of a single one is an option
MEMORY_BYTES = 4 << 30  # as in evalplus
REFERENCE_FACTOR = 4.0  # a test may always take so many times the reference solution's slowest call, as in evalplus
_VERDICTS = {"pass": Verdict.PASSED, "infra_error": Verdict.INFRA_ERROR}  # of graded answers; others are wrong
OUTPUT_BYTES = 64 << 20  # some tasks ask for values of megabytes


@dataclass(slots=True, kw_only=True, frozen=True)
class Result:
    """What came of one sample."""

    sample: Sample
    verdict: Verdict  # PASSED, or that of the first test that did not
    num_passed: int  # tests passed before it
    num_tests: int
    detail: str  # one line for people; empty if it passed


def limits_of(timeout_s: float) -> Limits:
    """Return the limits of one sample.

    Raises:
        ValueError: If the time is not above 0.
    """
    return Limits(
        test_s=timeout_s,
        solution_s=max(SOLUTION_S, timeout_s),
        memory_bytes=MEMORY_BYTES,
        output_bytes=OUTPUT_BYTES,
        file_bytes=OUTPUT_BYTES,
        judge_bytes=MEMORY_BYTES,
    )


def score_samples(samples: Sequence[Sample], *, sandbox: Sandbox, limits: Limits, num_workers: int) -> list[Result]:
    """Run every sample; `num_workers` tasks at a time, so that the expected values of few are in memory.

    Raises:
        ValueError: If a reference solution fails, or a test passes whatever an answer does.
        ReferenceNotRunError: If one could not be run.
    """
    places: dict[str, list[int]] = defaultdict(list)  # of a task's samples
    for place, sample in enumerate(samples):
        places[sample.task.task_id].append(place)

    def score_task(group: list[int]) -> list[tuple[int, Result]]:
        problem, own_limits = build_problem(samples[group[0]].task, limits, sandbox)
        return [(place, score_sample(samples[place], problem, own_limits, sandbox)) for place in group]

    results: dict[int, Result] = {}
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        for scored in pool.map(score_task, places.values()):
            results.update(scored)
    return [results[place] for place in range(len(samples))]


def build_problem(task: Task, limits: Limits, sandbox: Sandbox) -> tuple[Problem | Graded, Limits]:
    """Return a task's tests in the form that the reward package runs, and its limits; errors as above."""
    if task.problem is not None:
        return task.problem, limits
    if task.calls is not None:
        problem, slowest_s = problem_of(task.task_id, task.calls, task.reference, sandbox)
        return problem, replace(limits, test_s=max(limits.test_s, REFERENCE_FACTOR * slowest_s))
    tests = {"test_code": list(task.test_code), "fn_name": task.entry_point}
    try:
        problem = Problem.from_input_output(tests, problem_id=task.task_id, limits=limits)
        return replace(problem, leetcode=False), limits  # as the benchmarks' own harnesses
    except UncallableError:  # no answer passes; the benchmark counts the task all the same
        return unchecked_problem(task), limits


def unchecked_problem(task: Task) -> Problem:
    """Return a task's test code as it is."""
    return Problem(
        problem_id=task.task_id,
        inputs=list(task.test_code),
        outputs=[None] * len(task.test_code),
        kind="test_code",
        leetcode=False,
        fn_name=task.entry_point or None,
    )


def score_sample(sample: Sample, problem: Problem | Graded, limits: Limits, sandbox: Sandbox) -> Result:
    """Run one sample up to the first test that it does not pass."""

    def result(verdict: Verdict, num_passed: int, detail: str = "") -> Result:
        return Result(sample=sample, verdict=verdict, num_passed=num_passed, num_tests=problem.num_tests, detail=detail)

    if isinstance(problem, Graded):
        grade = problem.score(sample.text, limits)
        verdict = _VERDICTS.get(grade.outcome, Verdict.WRONG)
        return result(
            verdict, grade.num_passed, "" if verdict is Verdict.PASSED else f"{grade.outcome}: {grade.detail}"
        )
    if sample.program is None:
        return result(Verdict.COMPILE_ERROR, 0, "no code found")
    suffix = called_suffix(sample.task.task_id, sample.task.entry_point) if sample.task.calls else ""
    tests = run_tests(problem, sample.program + suffix, limits, sandbox, until_wrong=True)
    for index, (verdict, seen) in enumerate(tests):
        if verdict is not Verdict.PASSED:
            return result(verdict, index, f"test {index}: {seen}")
    return result(Verdict.PASSED, problem.num_tests)


def count_verdicts(results: Sequence[Result]) -> dict[str, int]:
    """Return how many samples ended how, without those verdicts that none has."""
    counts = Counter(result.verdict for result in results)
    return {verdict.value: counts[verdict] for verdict in Verdict if counts[verdict]}


def pass_at(results: Sequence[Result], ks: Sequence[int]) -> dict[int, float | None]:
    """Return pass@k for every k; None throughout if a sample could not be run, as any number would be a guess."""
    if any(result.verdict is Verdict.INFRA_ERROR for result in results):
        return dict.fromkeys(ks)
    passed: dict[str, list[bool]] = defaultdict(list)
    for result in results:
        passed[result.sample.task.task_id].append(result.verdict is Verdict.PASSED)
    return {k: mean_pass_at_k(((len(flags), sum(flags)) for flags in passed.values()), k) for k in ks}
