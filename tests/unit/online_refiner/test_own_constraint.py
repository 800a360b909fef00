"""A constraint outside the package (``constraint.mode=module:Class``): how it is found, and its README's code."""

import json
import math
import re
import textwrap
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from composed_main import composed
from soft import TOP_IDS, TOP_LOG_PROBS, ForwardKl, of_sequences, padded_top
from verl.utils import tensordict_utils as tu

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.method.constraint import Weighted, row_columns
from recipe.online_refiner.method.modes import CONSTRAINTS, read_constraint
from recipe.online_refiner.method.pairs import Pair, Refinement, Turn, Verdict
from recipe.online_refiner.method.step import StepState
from recipe.online_refiner.metrics import declared
from recipe.online_refiner.verl_glue.loss import append_refined_rows, jagged, joined
from recipe.online_refiner.verl_glue.rows import TAG, pair_of
from recipe.online_refiner.verl_glue.stages import Stages
from refiner_worker.client import RunEndedError
from refiner_worker.engines import ABSENT

README = Path(__file__).parents[3] / "examples" / "own_constraint" / "README.md"


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        (
            "no_such_module:Mine",
            "constraint.mode=no_such_module:Mine: there is no module no_such_module; set ",
        ),
        (
            "json:Mine",
            "constraint.mode=json:Mine: module json has no Mine",
        ),
        ("soft:Sofd", "module soft has no Sofd; did you mean Soft?"),
        ("json:JSONDecoder", "JSONDecoder of module json is not a subclass"),
        ("soft:Soft", None),
    ],
)
def test_a_class_is_found_by_its_module(mode: str, said: str | None) -> None:
    if said is None:
        assert type(load(composed(f"constraint.mode={mode}")).constraint).__name__ == "Soft"
        return
    with pytest.raises(ValueError, match=re.escape(said)):
        read_constraint({"mode": mode})


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that writes a module with a class ``Mine`` and returns the name of its mode."""

    def write(body: str) -> str:
        name = re.sub(r"\W", "_", request.node.name)
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(body))
        monkeypatch.syspath_prepend(tmp_path)
        return f"{name}:Mine"

    return write


HEAD = """
from functools import cached_property
from typing import ClassVar
import dataclasses
from pydantic.dataclasses import dataclass
from recipe.online_refiner.method.constraint import Mean
from recipe.online_refiner.method.modes import Aligned, Gated, Sft
from recipe.online_refiner.method.penalty import Eq6Penalty, PenaltyPart
from refiner_worker.keys import BLOCK

class Toll(PenaltyPart):
    def metrics(self, charged, data, turn_mask):
        return {"constraint/tolls": len(charged)}
"""
OF_PAIRS = """
@dataclass(kw_only=True, config=BLOCK)
class Mine(Sft):
    MEANING: ClassVar = {MEANING}
    def pair_metrics(self, pairs):
        return {"constraint/pairs": len(pairs)}
"""
OF_PENALTY = """
@dataclass(kw_only=True, config=BLOCK)
class Mine(Gated):
    @cached_property
    def penalty(self):
        return Toll()
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (OF_PAIRS.replace("{MEANING}", "{}"), "Mine.pair_metrics computes metrics, and Mine.MEANING is empty; write "),
        (
            OF_PENALTY,
            "Toll.metrics computes metrics, and Mine.MEANING is empty; write what each metric means, such as ",
        ),
        (
            OF_PAIRS.replace("{MEANING}", '{"constraint/pairs": " "}'),
            "Mine.MEANING has no words for constraint/pairs; ",
        ),
        (
            OF_PAIRS.replace("{MEANING}", '{"constraint/pairs": Mean("pairs", "constraint/lots")}'),
            "Mine.MEANING: constraint/pairs is a mean over constraint/lots; write ",
        ),
    ],
)
def test_a_metric_without_a_meaning_is_refused(body: str, said: str, written: Callable[[str], str]) -> None:
    mode = written(body)
    with pytest.raises(ValueError, match=re.escape(f"constraint.mode={mode}: {said}")) as error:
        load(composed(f"constraint.mode={mode}"))
    assert "MEANING: ClassVar = {" in str(error.value) and "\n" not in str(error.value)


def test_a_metric_that_is_not_declared_ends_the_run(written: Callable[[str], str]) -> None:
    mode = written(OF_PAIRS.replace("{MEANING}", '{"constraint/others": "other pairs"}'))
    constraint = load(composed(f"constraint.mode={mode}")).constraint
    assert declared(constraint, {"constraint/others": 1}) == {"constraint/others": 1}
    with pytest.raises(
        RunEndedError, match=r"Mine\.MEANING lacks the metric constraint/pairs, .*; write what"
    ) as error:
        declared(constraint, constraint.pair_metrics([]))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("decorator", ["", "@dataclasses.dataclass(kw_only=True)"])
def test_keys_without_the_decorator_are_refused(decorator: str, written: Callable[[str], str]) -> None:
    mode = written(
        f"{decorator}\nclass Mine(Gated):\n    DEFAULT_ETA: ClassVar[float] = 0.01\n    my_share: float = 0.5\n"
    )
    with pytest.raises(ValueError, match=r"Mine\.my_share of module .* write @dataclass\(kw_only=True, config=BLOCK\)"):
        read_constraint({"mode": mode, "my_share": 0.25})


@pytest.mark.parametrize(
    ("base", "penalty", "is_refused"),
    [("Gated", "ByCounterpart()", True), ("Gated", "Eq6Penalty(None)", True), ("Aligned", "ByCounterpart()", False)],
)
def test_a_penalty_by_counterparts_has_some(
    base: str, penalty: str, is_refused: bool, written: Callable[[str], str]
) -> None:
    body = f"""
    class ByCounterpart(PenaltyPart):
        reads = ("refine_counterparts",)

    class Mine({base}):
        @cached_property
        def penalty(self):
            return {penalty}
    """
    config = composed(f"constraint.mode={written(body)}")
    if not is_refused:
        assert load(config).constraint.penalty is not None
        return
    with pytest.raises(ValueError, match="charges by refine_counterparts, and Mine gives .* make it a subclass of Al"):
        load(config)


def test_a_class_without_keys_of_its_own_needs_no_decorator(written: Callable[[str], str]) -> None:
    mode = written("class Mine(Sft):\n    DEFAULT_ETA: ClassVar[float] = 0.5\n")
    assert read_constraint({"mode": mode}).first_eta == 0.5


def test_its_keys_are_its_fields() -> None:
    found = load(composed("constraint.mode=soft:Soft", "constraint.alignment=diff")).constraint
    assert isinstance(found, Weighted) and found.first_eta == 0.03
    with pytest.raises(ValueError, match="constraint.credit is not a key of constraint.mode=soft:Soft; its keys are: "):
        load(composed("constraint.mode=soft:Soft", "constraint.credit=in_reward"))


def test_the_readme_has_a_constraint_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "readme_constraint.py").write_text("\n".join(codes))
    monkeypatch.syspath_prepend(tmp_path)
    found = load(composed("constraint.mode=readme_constraint:MyConstraint", "constraint.reward_gate=false")).constraint
    assert found.penalty is not None and found.penalty.place("grpo") == "advantages" and found.imitation is None
    assert "alignment" not in {field.name for field in fields(found)}, "its penalty reads no counterparts"
    assert found.is_used(Verdict.NOT_BETTER) and found.penalty.is_charged(Pair(reward=0.0, is_used=True))
    assert found.penalty.charge({}, torch.tensor([[0, 1, 1]])).tolist() == [[0.0, -1.0, -1.0]]


def test_the_readmes_second_constraint_has_a_column_and_a_metric(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards 0.25 and 1: each token of the response pays 0.75."""
    codes = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "gain_constraint.py").write_text("\n".join(codes))
    monkeypatch.syspath_prepend(tmp_path)
    found = load(composed("constraint.mode=gain_constraint:ByGain")).constraint
    better = Refinement(verdict=Verdict.ACCEPTED, token_ids=[9, 2], reward=1.0)
    turn = Turn(response_length=2, start=0, ids=[7, 2], refinement=better, is_used=True, reward=0.25)
    other = Turn(response_length=2, start=0, ids=[], refinement=better, is_used=False, reward=math.nan)
    assert [row_columns(found, one)["refine_gain"] for one in (turn, other)] == [[0.75], [0.0]]
    assert found.penalty is not None and set(found.penalty.reads) == {"refine_gain"}
    data, turn_mask = {"refine_gain": torch.tensor([[0.75], [0.5]])}, torch.tensor([[1, 1, 0], [1, 1, 1]])
    charged = found.penalty.charge(data, turn_mask)
    assert charged.tolist() == [[-0.75, -0.75, 0.0], [-0.5, -0.5, -0.5]]
    metrics = found.penalty.metrics(charged, data, turn_mask)
    assert (
        metrics == {"constraint/gain_responses": 2, "constraint/gain": 0.625} and metrics.keys() == found.MEANING.keys()
    )


def test_its_metrics_are_a_steps_too() -> None:
    """Two mini-batches: a share of 0.5 over 8 tokens, and of 1 over 2."""
    config = composed("constraint.mode=soft:Soft")
    stages = Stages(config, load(config), None)  # type: ignore[arg-type]  # no workers are asked
    parts = [
        StepState(metrics={"constraint/soft_tokens": tokens, "constraint/soft_share": share})
        for tokens, share in ((8, 0.5), (2, 1.0))
    ]
    assert stages.of_step(parts) == {"constraint/soft_tokens": 10, "constraint/soft_share": 0.6}


def test_its_share_by_hand() -> None:
    soft = read_constraint({"mode": "soft:Soft"})
    used = Pair(reward=0.0, is_used=True, num_refined_tokens=6, num_kept_tokens=2, own={"soft_mass": 1.0})
    assert soft.pair_metrics([used, Pair(reward=0.0)]) == {"constraint/soft_tokens": 4, "constraint/soft_share": 0.25}
    assert soft.pair_metrics([Pair(reward=0.0)]) == {}


COLUMNS = {
    ("none", "rewrite"): set(),
    ("penalty", "rewrite"): set(),
    ("penalty", "in_place"): {"in_place", "in_place_prompt"},
    ("sft", "rewrite"): {"weights"},
    ("sft", "in_place"): {"in_place", "in_place_prompt", "weights"},
    ("lagrangian", "rewrite"): {"weights"},
}
"""Columns of each mode, whose names checkpoints know: rows that lack one are refined again."""


@pytest.mark.parametrize(("mode", "target"), CONSTRAINTS)
def test_the_columns_of_a_mode(mode: str, target: str) -> None:
    refinement = Refinement(verdict=Verdict.NONE)
    nothing = Turn(response_length=2, start=0, ids=[], refinement=refinement, is_used=False, reward=math.nan)
    columns = row_columns(read_constraint({"mode": mode, "target": target}), nothing)
    assert columns.keys() == {f"refine_{name}" for name in {"counterparts", *COLUMNS[mode, target]}}
    assert all(len(column) for column in columns.values()), "the queue keeps no empty row"


def test_a_row_of_an_earlier_state_is_read() -> None:
    """The tag of a row that a checkpoint of version 0.5.0 holds, with a name too many and one too few."""
    numbers = {"reward": -0.25, "verdict": "accepted", "source": "", "is_used": True, "start": 0, "refined_reward": 1.0}
    numbers |= {"num_refined_tokens": 3, "num_compared_tokens": 2, "is_repeated": False, "edit_distance": 1, "own": {}}
    numbers |= {"started_at": 1.0, "refined_at": 2.0, "nll": None, "divergence": 0.0, "num_kept_tokens": 0}
    numbers |= {"num_thought_tokens": 0, "num_prompt_tokens": 9, "num_generated_tokens": 3, "num_samples": 1}
    numbers |= {"num_better": 1, "latency_s": 0.5, "num_of_another_time": 7}
    pair = pair_of({TAG: json.dumps(numbers)})
    assert pair is not None and pair.verdict is Verdict.ACCEPTED
    assert (pair.reward, pair.num_compared_tokens, pair.latency_s) == (-0.25, 2, 0.5)


def test_its_columns_ride_along_with_refined_rows_alone() -> None:
    """Two equal refinements, which are not joined, and one row more that fills the micro-batch."""
    tops = [padded_top((np.full((2, 1), ids), np.full((2, 1), -0.5)), 3) for ids in (7, 8)]
    columns = {
        "prompts": [[3, 4], [3, 4]],
        "responses": [[11, 2], [12, 2]],
        "input_ids": [[3, 4, 11, 2], [3, 4, 12, 2]],
        "position_ids": [[0, 1, 2, 3], [0, 1, 2, 3]],
        "refine_ids": [[7, 9, 2], [7, 9, 2]],
        "refine_weights": [[1.0] * 3] * 2,
        TOP_IDS: [ids for ids, _ in tops],
        TOP_LOG_PROBS: [log_probs for _, log_probs in tops],
    }
    data = tu.get_tensordict(
        {name: jagged([torch.as_tensor(row) for row in rows]) for name, rows in columns.items()}
        | {"refine_used": torch.ones(2, dtype=torch.long), "refine_start": torch.zeros(2, dtype=torch.long)},
        {"refine_loss": ForwardKl()},
    )
    longer = append_refined_rows(joined(data), 3)
    assert [len(row) for row in longer[TOP_IDS].unbind()] == [0, 0, 3, 3, 0]
    ids = of_sequences(longer, TOP_IDS, 0)
    assert [row[:, 0].tolist() for row in ids] == [[0] * 4, [0] * 4, [0, 7, 7, 0, 0], [0, 8, 8, 0, 0], [0, 0]]
    is_known = [(row.exp().sum(-1) > 0).tolist() for row in of_sequences(longer, TOP_LOG_PROBS, ABSENT)]
    assert is_known[2:] == [*[[False, True, True, False, False]] * 2, [False, False]]
