"""``refiner.budget`` in a whole job."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.e2e
@pytest.mark.slow
def test_a_run_refines_what_its_tokens_allow(train_letters: Callable, tmp_path: Path) -> None:
    share = 0.2
    found = train_letters(tmp_path, 4, f"refiner.budget={share}", "trainer.save_freq=4")
    spent, written = (sum(step[f"tokens/{name}"] for step in found.steps) for name in ("refine", "rollout"))
    longest = max(step["tokens/refine"] for step in found.steps)
    assert 0 < spent <= written * share / (1 - share) + longest, "what a step spends too much the next ones lack"
    assert all(step["refiner/skipped/over_budget"] > 0 for step in found.steps)
    assert all(0 < step["refiner/budget_kept"] < 1 for step in found.steps if step["refiner/num_attempted"])
    left_out = [row for row in found.refinements if row["verdict"] == "over_budget"]
    assert len(left_out) == sum(step["refiner/skipped/over_budget"] for step in found.steps)
    assert all(row["refined"] is None for row in left_out)
    (file,) = tmp_path.glob("run/**/refiner_budget.json")
    known = json.loads(file.read_text())
    assert known["share"] == share
    assert sum(kind["accepted"] for kind in known["kinds"].values()) > 0
