"""The comparison of sources: its problems and blocks in order, what counts as accepted, and the rule."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import bootstrap
from experiments.sources import design, page
from recipe.offline.inputs import config_of

SOLUTION = "def chain(numbers):\n    numbers = [x % 3 for x in numbers]\n    return sum(numbers)\n"


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the bootstrap's samples, which decides the same here, where all problems of a block are alike."""
    monkeypatch.setattr(bootstrap, "NUM_SAMPLES", 1000)


def answers(number: int = design.NUM_UNSOLVED) -> list[dict[str, Any]]:
    """Return the lines of problems, ``number`` unsolved ones and in addition every third one solved."""
    lines: list[dict[str, Any]] = []
    while len(design.unsolved(lines)) < number:
        is_solved = len(lines) % 3 == 2
        lines.append({"problem": len(lines), "rewards": [0.2, 0.0, 1.0 if is_solved else 0.4, 0.0]})
    return lines


def draw(*, accepted: bool, written: int = 50, **more: Any) -> dict[str, Any]:
    return {"verdict": "accepted" if accepted else "not_better", "written": written, "read": 99, **more}


def lines_by(shares: dict[str, int], *, cpu_s: float = 60.0) -> list[dict[str, Any]]:
    """Return the lines of all blocks, in which so many of four draws to each problem are accepted, by way."""
    lines = []
    for number, way, chosen in design.blocks(answers()):
        own = [draw(accepted=n < shares[way]) for n in range(4)]
        problems = [one["problem"] for one in chosen]
        lines.append({"block": number, "way": way, "cpu_s": cpu_s, "problems": problems, "draws": [own] * len(chosen)})
    return lines


def test_problems_are_new_and_have_solutions() -> None:
    rows = design.rows()
    assert len(rows) == design.NUM_PROBLEMS and len({row["prompt"][0]["content"] for row in rows}) == len(rows)
    assert all(row["extra_info"]["solution"].startswith("def chain(numbers):\n") for row in rows)
    assert rows[0]["extra_info"]["problem_id"].startswith("chain-3-")


def test_every_way_is_one_that_check_reads_and_all_have_the_same_limits() -> None:
    for text in design.WAYS.values():
        config = config_of(text, design.options())
        assert config.temperature == 1 and config.response_length == 192 and config.samples == 1
        assert f"set stop = {json.dumps(design.STOP)}" in config.template_path().read_text()


def test_blocks_take_the_unsolved_problems_in_order_and_the_ways_in_turn() -> None:
    blocks = list(design.blocks(answers()))
    assert len(blocks) == 38 * 4 and [number for number, _, _ in blocks[::4]] == list(range(38))
    assert [one["problem"] for one in blocks[0][2]] == [0, 1, 3, 4, 6, 7, 9, 10]
    assert [way for _, way, _ in blocks[:4]] == list(design.WAYS)
    assert [way for _, way, _ in blocks[4:8]] == [*list(design.WAYS)[1:], next(iter(design.WAYS))]
    assert sum(len(chosen) for _, way, chosen in blocks if way == "sibling") == design.NUM_UNSOLVED


@pytest.mark.parametrize(
    ("text", "copied"),
    [
        (f"Here it is:\n```python\n{SOLUTION}```\n", True),
        (f"```python\n{SOLUTION.replace('    ', '  ')}\n```\nIt sums.", True),
        (f"```python\n{SOLUTION.replace('sum(numbers)', 'max(numbers)')}```\n", False),
        ("I cannot.", False),
    ],
)
def test_a_copy_of_the_solution(text: str, copied: bool) -> None:
    from experiments.sources import runner

    assert runner.is_copy(text, SOLUTION) == copied
    assert not page.is_accepted(draw(accepted=True, copied=True)) and page.is_accepted(draw(accepted=True))


def test_accepted_at_k_and_yield_by_hand() -> None:
    lines = lines_by({"second_sample": 1, "hidden_feedback": 2, "solution": 0, "sibling": 4})
    assert page.accepted_at(lines, "second_sample", 1) == 0.25
    assert page.accepted_at(lines, "hidden_feedback", 2) == pytest.approx(1 - 1 / 6)
    assert page.accepted_at(lines, "solution", 4) == 0 and page.accepted_at(lines, "sibling", 4) == 1
    assert page.yield_at(lines, "second_sample", 1) == pytest.approx(5.0), "a quarter of 50 tokens"
    assert page.yield_at(lines, "second_sample", 4) == pytest.approx(5.0)
    assert page.ratio(page.speeds(lines, "sibling")) == pytest.approx(300 * 4 / (38 * 60))


@pytest.mark.parametrize(
    ("shares", "ways", "k"),
    [
        ((1, 1, 1, 1), ["second_sample"], 4),
        ((2, 3, 1, 1), ["hidden_feedback"], 1),
        ((1, 2, 4, 3), ["solution", "sibling"], 1),
        ((1, 0, 2, 0), ["solution", "second_sample"], 2),
    ],
)
def test_the_rule(shares: tuple[int, ...], ways: list[str], k: int) -> None:
    lines = lines_by(dict(zip(design.WAYS, shares, strict=True)))
    assert page.recommended(lines) == (ways, k)


def test_a_way_that_is_slower_beats_nothing() -> None:
    lines = lines_by({"second_sample": 1, "hidden_feedback": 3, "solution": 0, "sibling": 0})
    for line in lines:
        line["cpu_s"] = 200.0 if line["way"] == "hidden_feedback" else 60.0
    assert page.recommended(lines)[0] == ["second_sample"]


def test_the_page_has_no_verdict_before_all_is_there(tmp_path: Path) -> None:
    lines = lines_by({"second_sample": 1, "hidden_feedback": 3, "solution": 0, "sibling": 0})
    for name, own in ((design.ANSWERS, answers()), (design.DRAWS, lines)):
        (tmp_path / name).write_text("".join(json.dumps(one) + "\n" for one in own))
    page.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "449 problems were answered, 300 of them unsolved. All 300 problems are there. By the rule," in text
    assert "`hidden_feedback` is recommended, with k = 1." in text
    assert "| `hidden_feedback` | 75.0% | 100.0% | 100.0% | 50 | 15.00 | +10.00 (+10.00 to +10.00) | 39.47 |" in text
    early = page.text_of(answers(), lines[:-1])
    assert "296 of 300 problems are there. **Nothing is decided" in early and "recommended" not in early
    assert "| way |" not in page.text_of([], [])


def test_a_difference_of_ratios_is_paired() -> None:
    rng = np.random.default_rng(1)
    base = np.column_stack([rng.integers(0, 5, 300), np.full(300, 200)]).astype(float)
    same = page.against(base, base)
    assert same == (0.0, 0.0, 0.0)
    more = page.against(base + [1, 0], base)
    assert more[0] == pytest.approx(1 / 200) and more[1] == pytest.approx(more[2])
