"""Runs samples in the sandbox: a sample passes when every test of its task does. And pass@k of the verdicts."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from recipe.evaluation.benchmarks import Sample
from reward.apps import Verdict, run_tests
from reward.grading import Graded
from reward.judge import JudgeLostError
from reward.limits import Limits
from reward.sandbox import Sandbox

SOLUTION_S = 600.0  # wall seconds of all tests of one sample; the time of a single one is an option
MEMORY_BYTES = 4 << 30  # as in evalplus
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
    program: str | None = None  # what ran, or a graded answer; None: there is no code


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
    """Run every sample, `num_workers` at a time."""
    with ThreadPoolExecutor(max_workers=num_workers) as pool:
        return list(pool.map(partial(score_sample, sandbox=sandbox, limits=limits), samples))


def score_sample(sample: Sample, *, sandbox: Sandbox, limits: Limits) -> Result:
    """Run one sample up to the first test that it does not pass."""
    problem = sample.task.problem
    program: str | None = None

    def result(verdict: Verdict, num_passed: int, detail: str = "") -> Result:
        own = Result(sample=sample, verdict=verdict, num_passed=num_passed, num_tests=problem.num_tests, detail=detail)
        return replace(own, program=program)

    try:
        program = sample.program
    except JudgeLostError as error:
        return result(Verdict.INFRA_ERROR, 0, str(error))

    if isinstance(problem, Graded):
        grade = problem.score(sample.text, limits)
        verdict = _VERDICTS.get(grade.outcome, Verdict.WRONG)
        detail = "" if verdict is Verdict.PASSED else f"{grade.outcome}: {grade.detail}"
        return result(verdict, grade.num_passed, detail)
    if program is None:
        return result(Verdict.COMPILE_ERROR, 0, "no code found")
    tests = run_tests(problem, program, limits, sandbox, until_wrong=True)
    for index, (verdict, seen) in enumerate(tests):
        if verdict is not Verdict.PASSED:
            return result(verdict, index, f"test {index + 1}: {seen}")
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
    return {k: math.fsum(pass_at_k(len(flags), sum(flags), k) for flags in passed.values()) / len(passed) for k in ks}


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the unbiased estimate 1 - C(n - c, k) / C(n, k) for c passed of n samples, k from 1 to n.

    It is the share of the k-subsets of the n samples that hold a passed one, in exact integers until the division.
    """
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)
