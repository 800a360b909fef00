"""The same wrong answers refined in two ways, by the command."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

REWARD = """
def score(data_source, solution_str, ground_truth, extra_info):
    share = sum(c.islower() for c in solution_str) / max(len(solution_str), 1)
    return {"score": share, "feedback": f"{share:.0%} are small."}
"""


@pytest.mark.e2e
@pytest.mark.slow
def test_ways_are_compared_on_the_same_answers(
    start_marked: Callable, tiny_llama: Path, letter_prompts: Path, tmp_path: Path
) -> None:
    (tmp_path / "letters.py").write_text(REWARD)
    command = ["-m", "recipe.commands", "check", "general", "general+feedback", "dialogue+sibling"]
    command += ["--model", str(tiny_llama), "--data", str(letter_prompts), "--reward", "letters:score"]
    command += ["--samples", "3", "--max-response-tokens", "16", "--max-new-tokens", "24", "--output", "found.jsonl"]
    job = start_marked(command, cwd=tmp_path)
    assert job.wait(300) == 0, job.output()[-6000:]
    assert job.survivors() == []
    lines = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    ways = {way: [line for line in lines if line["way"] == way] for way in ("general", "general+feedback")}
    plain, told = ways.values()
    assert len(plain) > 10 and [line["response"] for line in plain] == [line["response"] for line in told]
    assert all(line["feedback"] == f"{line['reward']:.0%} are small." for line in lines)
    improved = sum((line["refined_reward"] or 0.0) > line["reward"] for line in plain) / len(plain)
    # Pairs of answers to one problem: how often the other is better. Perfect ones are not refined, and have no line.
    by_problem: dict[str, list[float]] = {}
    for line in plain:
        by_problem.setdefault(line["key"].split("_")[0], []).append(line["reward"])
    better = sum(other > one for own in by_problem.values() for one in own for other in [*own, *[1.0] * (3 - len(own))])
    assert f"Another answer has a higher reward: {better / (2 * len(plain)):.1%}" in job.output()
    table = job.output()[job.output().index("| way |") :].splitlines()
    assert table[2].startswith(f"| `general` | {improved:.1%} (") and len(table) >= 5
