"""The page of the comparison over learning rates: planned contrasts, collapse, and the committed page."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.rates import design, page
from experiments.rates.design import EVERY, METHODS, RATES, SHORT, Spec

BEST = {
    (strength, method): (4e-4, 0.3 if METHODS[method].weights else 0.0)
    for strength in ("strong", "weak")
    for method in METHODS
}


def line(spec: Spec, share: float, start: float = 0.3) -> dict[str, Any]:
    """Return a run that solves `share` at each validation."""
    at = list(range(EVERY, spec.tokens + 1, EVERY))
    own = {name: getattr(spec, name) for name in Spec.__dataclass_fields__}
    more = {"base": f"b{spec.base_seed}", "start": start, "pass_at_8": 0.9, "kl": 1.0, "steps": 150, "cpu_s": 25.0}
    return {**own, **more, "at": at, "solved": [share] * len(at)}


def cell(strength: str, method: str, shares: list[float], **more: Any) -> list[dict[str, Any]]:
    rate, weight = BEST[strength, method]
    rate = more.pop("rate", rate)
    return [line(Spec(strength, method, rate, weight, seed, **more), share) for seed, share in enumerate(shares, 1)]


def rows_of(lines: list[dict[str, Any]]) -> dict[str, list[str]]:
    rows = [[one.strip() for one in row.split("|")[1:-1]] for row in page.contrast_rows(lines, BEST)]
    return {row[0]: row[1:] for row in rows}


def test_a_difference_is_decided_after_correction() -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.02, (2, 30))
    lines = cell("strong", "sft", list(0.6 + noise[0])) + cell("strong", "none", list(0.5 + noise[1]))
    effect, p, pairs, verdict = rows_of(lines)["sft - none, strong"]
    assert float(effect.split()[0]) == pytest.approx(0.1, abs=0.02)
    assert (float(p) < 0.01, pairs, verdict) == (True, "30", "decided")
    assert rows_of(lines)["sft - second_sample, strong"] == ["-", "-", "0", "no runs"]
    assert len(rows_of(lines)) == 20


def test_methods_that_hardly_differ_are_equivalent_and_few_runs_are_not_decided() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 0.01, (2, 30))
    lines = cell("weak", "sft", list(0.5 + noise[0])) + cell("weak", "second_sample", list(0.5 + noise[1]))
    assert rows_of(lines)["sft - second_sample, weak"][3].startswith("equivalent")
    few = [one for one in lines if one["seed"] < 5]
    assert rows_of(few)["sft - second_sample, weak"][3].startswith("not decided")


def test_runs_at_another_rate_or_task_are_another_cell() -> None:
    lines = cell("strong", "sft", [0.6] * 5) + cell("strong", "none", [0.5] * 5, rate=1e-3)
    lines += cell("strong", "none", [0.5] * 5, task="hole", tokens=2 * SHORT)
    assert rows_of(lines)["sft - none, strong"][2] == "0"


def test_collapse_is_compared_where_no_constraint_collapses_in_half() -> None:
    calm = [entry for rate in RATES[:4] for entry in cell("strong", "none", [0.5] * 20, rate=rate)]
    half = cell("strong", "none", [0.1] * 18 + [0.5] * 2, rate=RATES[4])
    held = cell("strong", "sft", [0.5] * 20, rate=RATES[4])
    assert page.collapse_rate(calm) is None
    assert page.collapse_rate(calm + half) == RATES[4]
    effect, p, pairs, verdict = rows_of(calm + half + held)["collapsed: sft, none"]
    assert (effect, pairs, verdict) == ("0% against 90%", "20", "decided")
    assert float(p) == pytest.approx(20 * 2 * 0.5**18, abs=1e-4)


def test_the_page_is_made_by_the_lines_alone(tmp_path: Path) -> None:
    lines = cell("strong", "sft", [0.6] * 6) + cell("weak", "sft", [0.5] * 3, tokens=design.LONG)
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    page.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "0 that tune, 9 that count" in text
    assert "| strong | all | 67k | sft | r80 | 0.0004 | 0.3 | 6 | 0.600 | 0% | 0.90 | 1.00 | 25 |" in text
    first = (tmp_path / "rates.png").read_bytes(), text
    page.write(tmp_path)
    assert first == ((tmp_path / "rates.png").read_bytes(), (tmp_path / "README.md").read_text())


def test_the_committed_page_is_that_of_the_committed_runs(tmp_path: Path) -> None:
    for file in design.RESULTS.glob("*.jsonl"):
        shutil.copy(file, tmp_path)
    page.write(tmp_path)
    assert (tmp_path / "README.md").read_text() == (design.RESULTS / "README.md").read_text()
