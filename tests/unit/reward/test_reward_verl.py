import asyncio
import json

import pytest
from in_sandbox import run_python

from reward.verl_reward import compute_score, validate_row

GROUND_TRUTH = json.dumps({"inputs": [[1], [2]], "outputs": [2, 4], "fn_name": "double", "problem_id": "p"})
KEYS = {"score", "acc", "outcome", "num_passed", "num_tests", "feedback"}


def answer(body: str) -> str:
    return f"```python\ndef double(x):\n    {body}\n```"


def test_concurrent_answers_have_the_same_keys_and_do_not_block_the_loop() -> None:
    right = answer("import time; time.sleep(0.2); return 2 * x")  # long enough to see the loop go on meanwhile
    responses = [right, answer("return 2"), answer("return 1 / 0"), "no code", answer("return ((")]

    async def score_all() -> tuple[list[dict[str, float | int | str | None]], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticker = asyncio.create_task(tick())
        scores = await asyncio.gather(
            *(compute_score("mini_apps", r, GROUND_TRUTH, {}, max_concurrency=2) for r in responses)
        )
        ticker.cancel()
        return list(scores), ticks

    scores, ticks = asyncio.run(score_all())
    assert [score["score"] for score in scores] == [1.0, pytest.approx(0.35), -0.6, -1.0, -1.0]
    assert [score["acc"] for score in scores] == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert [score["outcome"] for score in scores] == ["pass", "fail", "runtime_error", "compile_error", "compile_error"]
    assert all(score.keys() == KEYS for score in scores)
    assert ticks >= 3


def test_a_process_may_begin_with_an_answer_without_code() -> None:
    program = "import asyncio\nfrom reward.verl_reward import compute_score\n"
    program += f"print(asyncio.run(compute_score('d', 'I do not know.', {GROUND_TRUTH!r}))['score'])"
    done = run_python(program)
    assert done.stdout == "-1.0\n", done.stderr[-2000:]


def test_a_fork_of_a_process_that_has_scored_scores_too() -> None:
    right = answer("return 2 * x")
    program = f"""
import asyncio, os, signal
from reward.verl_reward import compute_score
score = lambda: asyncio.run(compute_score('d', {right!r}, {GROUND_TRUTH!r}))['score']
assert score() == 1.0
if os.fork() == 0:
    signal.alarm(60)
    os._exit(0 if score() == 1.0 else 1)
os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = run_python(program)
    assert done.returncode == 0, done.stderr[-2000:]


def test_test_code_may_run_unittest() -> None:
    tests = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test(self):\n"
    tests += "        self.assertEqual(double(3), 6)\n\n\nif __name__ == '__main__':\n    unittest.main()\n"
    truth = json.dumps({"test_code": [tests], "fn_name": "double", "problem_id": "p"})
    scores = [asyncio.run(compute_score("d", answer(f"return {n} * x"), truth))["acc"] for n in (2, 3)]
    assert scores == [1.0, 0.0]


def test_limits_come_from_reward_kwargs() -> None:
    loop = answer("while True: pass")
    score = asyncio.run(compute_score("d", loop, GROUND_TRUTH, limits={"test_s": 0.3}))
    assert score["outcome"] == "time_out"
    with pytest.raises(ValueError, match="there is no limit test_seconds: choose from test_s, wall_factor, "):
        asyncio.run(compute_score("d", loop, GROUND_TRUTH, limits={"test_seconds": 1.0}))
    with pytest.raises(TypeError, match="slots"):
        asyncio.run(compute_score("d", loop, GROUND_TRUTH, sandbox={"slots": 1}))


@pytest.mark.parametrize(
    "limits", [{"output_bytes": 1e6}, {"test_s": float("inf")}, {"judge_s": 0}, {"open_files": True}]
)
def test_a_limit_under_which_nothing_could_run_is_named(limits: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"limit {next(iter(limits))} must be a .*number above 0"):
        validate_row({"reward_model": {"ground_truth": GROUND_TRUTH}}, limits=limits)


def test_infra_error_raises() -> None:
    limits = {"startup_s": 1e-6, "infra_attempts": 1}
    with pytest.raises(RuntimeError, match="problem p: the answer could not be run in 1 attempts"):
        asyncio.run(compute_score("d", answer("return x"), GROUND_TRUTH, limits=limits))


def test_rows_are_validated_before_training() -> None:
    row = {"data_source": "d", "reward_model": {"ground_truth": GROUND_TRUTH}, "extra_info": {"problem_id": "p"}}
    validate_row(row)
    bad = {**row, "reward_model": {"ground_truth": '{"inputs": ["1"], "outputs": []}'}}
    with pytest.raises(ValueError, match="problem p: 1 inputs but 0 outputs"):
        validate_row(bad)
    with pytest.raises(ValueError, match="ground_truth is not JSON"):
        asyncio.run(compute_score("d", "", "not JSON"))
