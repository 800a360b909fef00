"""What a run's numbers say about its refiner's settings."""

import pytest

from recipe.online_refiner.advice import advice


def step(attempted: int, truncated: int, copied: float = 0.0) -> dict[str, float]:
    return {"refiner/num_attempted": attempted, "refiner/failed/truncated": truncated, "refiner/copied": copied}


@pytest.mark.parametrize(("truncated", "is_much"), [(2, False), (3, True)])
def test_truncated_refinements_are_told_of(truncated: int, is_much: bool) -> None:
    (line,) = advice([step(8, 0), step(0, 0), step(2, truncated)])
    assert f"refiner.response_length: {truncated / 10:.0%}" in line
    assert ("raise it" in line) is is_much


def test_copied_refinements_are_told_of() -> None:
    line = advice([step(8, 0, 0.1), step(8, 0, 0.75)])[1]
    assert line.startswith("75%") and "take them out of refiner.context" in line
    assert len(advice([step(8, 0, 0.5)])) == 1


def test_a_run_that_refined_nothing_has_none() -> None:
    assert advice([]) == advice([step(0, 0)]) == []
