"""A model that thinks, in whole jobs: the letters model, whose thoughts are told to stand between an a and a b."""

from collections.abc import Callable
from pathlib import Path

import pytest

THINKS = ["refiner.thoughts=[a,b]", "refiner.template=dialogue", "actor_rollout_ref.rollout.max_model_len=640"]


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sft", "penalty"])
def test_a_refinement_begins_with_the_responses_thought(train_letters: Callable, tmp_path: Path, mode: str) -> None:
    trained = train_letters(tmp_path, 2, *THINKS, f"constraint.mode={mode}", "constraint.eta=0.1")
    scored = [one for one in trained.refinements if one["verdict"] in ("accepted", "not_better")]
    thought = {one["key"]: one["response"][: one["response"].rfind("b") + 1] for one in scored}
    assert any(thought.values())
    assert all(one["refined"].startswith(thought[one["key"]]) for one in scored)
    cut = [one for one in trained.refinements if one["response"].startswith("a") and "b" not in one["response"]]
    assert {one["verdict"] for one in cut} <= {"no_answer"}
    for name in ("tokens/refine_thought", "tokens/refine_kept", "refiner/num_accepted"):
        assert sum(step[name] for step in trained.steps) > 0, name
    assert all(step["actor/grad_norm"] > 0 for step in trained.steps)
