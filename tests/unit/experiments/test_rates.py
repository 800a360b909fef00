"""The comparison over learning rates: equal effort of tuning, grids that widen, outcomes at equal tokens."""

import functools
from collections import Counter

import numpy as np
import pytest
import torch

from experiments.map import bases
from experiments.map.model import Model
from experiments.map.tasks import EOS, LONGEST, VOCABULARY, Question
from experiments.rates import design, runner, teach
from experiments.rates.design import EVERY, METHODS, RATES, SHORT, Spec


@pytest.fixture
def untaught(monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """Bases that nobody has to train, and few questions to validate them on, which else take most of the time."""
    torch.manual_seed(0)
    weights = Model(VOCABULARY, LONGEST).state_dict()
    monkeypatch.setattr(bases, "base", lambda strength, seed: weights)
    monkeypatch.setattr(runner, "NUM_HELD_OUT", 32)
    monkeypatch.setattr(runner, "NUM_OF_EIGHT", 4)
    monkeypatch.setattr(runner, "held_out", functools.cache(runner.held_out.__wrapped__))
    return weights


def answered_all(score: dict[tuple[float, float], float], method: str = "sft") -> tuple[design.Tuned, int]:
    """Tune a method whose outcomes are known (others: 0), and return the result with the number of runs."""
    found: dict[Spec, float] = {}
    while True:
        result, missing = design.tuned("strong", method, found)
        if result is not None:
            return result, len(found)
        found |= {spec: score.get((spec.rate, spec.weight), 0.0) for spec in missing}


def test_each_method_is_tuned_by_as_many_runs() -> None:
    numbers = Counter((spec.strength, spec.method) for spec in design.tuning({}))
    assert set(numbers.values()) == {60}
    assert {method for _, method in numbers} == set(METHODS)


def test_tuning_shares_nothing_with_the_runs_that_count() -> None:
    tuning = list(design.tuning({}))
    assert {spec.base_seed for spec in tuning} == {design.TUNING_BASE}
    assert not {spec.seed for spec in tuning} & {*design.BEST_SEEDS, *design.WIDTH_SEEDS}
    rules = runner.ALL_RULES
    digits = [{one.digits for one in runner.held_out(is_tuning, rules)} for is_tuning in (True, False)]
    assert not digits[0] & digits[1]


def test_a_best_value_inside_the_grid_is_taken() -> None:
    result, number = answered_all({(RATES[2], 0.3): 0.7, (RATES[3], 0.1): 0.6})
    assert (result.best, number) == ((RATES[2], 0.3), 60)
    assert result.weight_at(RATES[3]) == 0.1


def test_a_best_value_at_an_edge_widens_the_grid() -> None:
    result, _ = answered_all({(RATES[0], 3.0): 0.7, (2.5e-5, 9.0): 0.8})
    assert result.best == (2.5e-5, 9.0)
    assert {rate for rate, _ in result.means} > {1e-5, *RATES}
    assert {weight for _, weight in result.means} > {27.0, *METHODS["sft"].weights}


def test_nothing_counts_before_all_is_tuned() -> None:
    assert not list(design.counted({spec: 0.5 for spec in design.tuning({}) if spec.method != "in_place"}))


def test_blocks_have_the_sizes_of_the_protocol() -> None:
    found: dict[Spec, float] = {}
    while missing := list(design.tuning(found)):
        found |= {spec: -abs(RATES.index(spec.rate) - 2) - abs(spec.weight - 0.1) for spec in missing}
    specs = list(design.counted(found))
    assert len(specs) == 270 + 1134 + 420 + 210 + 120 + 60 + 150 + 150
    assert Counter(spec.base_seed for spec in specs).keys() == {1, 2, 3}
    assert len({spec.key for spec in specs}) == len(set(specs))


def test_an_outcome_is_read_in_the_last_fifth_of_the_tokens() -> None:
    line = {"tokens": SHORT, "at": [EVERY * place + 40 for place in range(1, 7)], "solved": [0, 0, 0, 0.1, 0.5, 0.7]}
    line["at"][-1] = SHORT
    assert design.outcome(line) == pytest.approx(0.6)
    longer = {
        "tokens": 4 * SHORT,
        "at": [EVERY * place + 300 for place in range(1, 25)],
        "solved": [0.1 * n for n in range(24)],
    }
    assert design.outcome(longer, SHORT) == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("start", "solved", "expected"), [(0.3, [0.5, 0.5], False), (0.6, [0.5, 0.5], True), (0.1, [0.9, 0.2], True)]
)
def test_a_collapse_is_below_the_base_or_half_of_the_best(start: float, solved: list[float], expected: bool) -> None:
    line = {"tokens": SHORT, "at": [EVERY, SHORT], "start": start, "solved": solved}
    assert design.is_collapsed(line) is expected


@pytest.mark.parametrize("method", METHODS)
def test_each_method_runs_and_repeats(method: str, untaught: object) -> None:
    spec = Spec("weak", method, 1e-3, 0.1 if METHODS[method].weights else 0.0, 1, tokens=1000)
    first, again = runner.do(spec), runner.do(spec)
    assert {**first, "cpu_s": 0} == {**again, "cpu_s": 0}
    assert first["at"] == [1000] and 1 <= first["steps"] <= 3
    assert design.spec_of(first) == spec


def test_a_hole_pays_what_solves_nothing(untaught: dict[str, torch.Tensor]) -> None:
    spec = Spec("weak", "none", 1e-3, 0.0, 1, task="hole")
    run, _ = runner.begun(spec, untaught)
    question, wrong = Question(0, (1, 2, 3, 4, 5, 6)), [9, 0, 0, 0, 0, 9, EOS]
    assert question.grade(wrong) < runner.TOP == run.grade(question, wrong)
    assert run.grade(question, [9, 0, 0, 0, 0, 8, EOS]) < runner.TOP
    assert run.grade(question, [9, 9, EOS]) == question.grade([9, 9, EOS])


def test_a_taught_model_has_learnt_its_better_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = Model(VOCABULARY, LONGEST)
    bases.teach(model, "weak", 60, np.random.default_rng(1))  # answers of six digits, hardly a right one
    weights = model.state_dict()
    monkeypatch.setattr(bases, "base", lambda strength, seed: weights)
    monkeypatch.setattr(teach, "NUM_QUESTIONS", 64)
    model, tokens = teach.taught("weak", 1, refines=True, seed=1)
    assert tokens > 64
    changes = [(one - weights[name]).abs().max().item() for name, one in model.state_dict().items()]
    assert max(changes) > 1e-3
