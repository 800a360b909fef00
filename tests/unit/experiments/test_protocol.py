"""The experiment's phases: which runs, and what is chosen from them."""

from pathlib import Path

import pytest

from experiments.lab.arms import TUNED, UNTUNED
from experiments.lab.protocol import HELD_OUT, Protocol, read

RESULTS = Path(__file__).parents[3] / "experiments" / "results"


def test_each_phase_needs_the_one_before() -> None:
    rules = Protocol()
    assert len(dict(rules.runs("calibrate"))) == len(rules.learning_rates) * len(rules.calibration_seeds)
    for phase, missing in (("tune", "learning_rate: run calibrate"), ("final", "learning_rate: run calibrate")):
        with pytest.raises(ValueError, match=missing):
            dict(rules.runs(phase))
    rules.learning_rate = 5e-4
    assert len(dict(rules.runs("tune"))) == 2 * sum(len(weights) for _, weights in TUNED.values())
    with pytest.raises(ValueError, match="no weights of what it tries: run tune"):
        dict(rules.runs("final"))
    rules.weights = dict.fromkeys(TUNED, 0.3)
    rules.arms["ppo"] = ["none", "kl_in_loss", "sft", "penalty"]
    final = dict(rules.runs("final"))
    assert len(final) == len(UNTUNED) * 6 - 3 + 4 * 4
    assert "constraint.eta=0.3" in final["dapo-sft_no_gate-seed6"]
    assert "dapo-sft_rescue-seed3" in final and "dapo-sft_rescue-seed4" not in final
    for runs in (dict(rules.runs("tune")), final):
        assert all("actor_rollout_ref.actor.optim.lr=0.0005" in overrides for overrides in runs.values())


@pytest.mark.parametrize(
    ("shares", "collapses"),
    [
        ([0.2, 0.5, 0.6, 0.46], False),
        ([0.2, 0.6, 0.44, 0.7], True),
        ([0.5, 0.3, 0.3, 0.3], True),
        ([0.1, 0.1, 0.1, 0.2], False),
        ([0.2, 0.2, 0.2, 0.1], True),
    ],
)
def test_a_collapse_is_a_fall_from_the_maximum_or_an_end_below_the_beginning(
    shares: list[float], collapses: bool
) -> None:
    assert Protocol().collapses(dict(zip((0, 5, 10, 15), shares, strict=True))) == collapses


def test_the_lowest_learning_rate_that_is_much_worse_than_a_lower_one() -> None:
    rules = Protocol(learning_rates=[2e-3, 1e-3, 5e-4], calibration_seeds=[7, 8])
    good, fair, bad = ({10: mean, 15: mean, 20: mean} for mean in (0.6, 0.5, 0.4))

    def chosen(*means: dict[int, float]) -> float:
        rates = zip((5e-4, 1e-3, 2e-3), means, strict=True)
        return rules.choose_learning_rate({f"lr{rate:g}-seed{seed}": mean for rate, mean in rates for seed in (7, 8)})

    assert chosen(good, bad, bad) == 1e-3 and chosen(good, fair, bad) == 2e-3
    assert chosen(bad, good, good) == 2e-3, "none is too high"


def test_the_best_weights_and_methods_over_seeds_and_the_smaller_weight_of_equals() -> None:
    rules = Protocol(tuning_seeds=[7, 8], learning_rate=1e-3)
    found = {name: {10: 0.5, 15: 0.5, 20: 0.5} for name, _ in rules.runs("tune")}
    found |= {"sft-1-seed7": {10: 0.5, 15: 0.5, 20: 0.7}, "sft-0.3-seed8": {10: 0.5, 15: 0.5, 20: 0.6}}
    found |= {"lagrangian-0.1-seed7": {10: 0.5, 15: 0.5, 20: 1.0}, "kl_in_loss-0.3-seed7": {10: 0.5, 15: 0.6, 20: 0.5}}
    rules.learn_from_tuning(found)
    best = {"sft": 1.0, "lagrangian": 0.1, "kl_in_loss": 0.3}
    assert rules.weights == {name: best.get(name, min(weights)) for name, (_, weights) in TUNED.items()}
    assert rules.arms == {"dapo": list(UNTUNED), "ppo": ["none", "kl_in_loss", "lagrangian", "sft"]}
    assert rules.contrasts == [["lagrangian", "kl_in_loss"], ["sft", "sft_no_gate"], ["lagrangian", "none"]]
    assert len(dict(rules.runs("final"))) == len(UNTUNED) * 6 - 3 + 4 * 4


def test_another_task_tries_some_methods_only() -> None:
    tried = {"kl_in_loss": [0.01, 0.1], "sft": [0.1, 1.0]}
    rules = Protocol(learning_rate=1e-3, tried=tried, tuning_seeds=[7], seeds={"grpo": [1]}, arms={"grpo": None})
    runs = dict(rules.runs("tune"))
    assert all("algorithm.filter_groups.enable=false" in overrides for overrides in runs.values())
    assert list(runs) == ["kl_in_loss-0.01-seed7", "kl_in_loss-0.1-seed7", "sft-0.1-seed7", "sft-1-seed7"]
    rules.learn_from_tuning({name: {10: 0.5, 15: 0.5, 20: 0.5} for name in runs})
    assert list(dict(rules.runs("final"))) == ["grpo-none-seed1", "grpo-kl_in_loss-seed1", "grpo-sft-seed1"]


def test_one_method_beside_others_whose_weights_are_known() -> None:
    rules = read(RESULTS / "lab_sums_in_place.yaml")
    assert rules.weights is not None and rules.weights.pop("in_place") == 0.01
    assert list(dict(rules.runs("tune"))) == [f"in_place-{weight}-seed123" for weight in ("0.01", "0.1", "1")]
    with pytest.raises(ValueError, match="no weights of what it tries: run tune"):
        dict(rules.runs("final"))
    contrasts = rules.contrasts
    rules.learn_from_tuning({name: {4: 0.5, 8: 0.5, 12: 0.5} for name, _ in rules.runs("tune")})
    assert rules.weights == {"kl_in_loss": 0.01, "sft": 0.1, "in_place": 0.01} and rules.contrasts == contrasts
    assert len(dict(rules.runs("final"))) == 4 * 5, "the key of its control, `constant`, is gone"


def test_held_out_shares_of_the_steps_that_have_one() -> None:
    assert Protocol().held_out_of([{"step": 1}, {"step": 5, HELD_OUT: 0.25}]) == {5: 0.25}
    two = Protocol(held_out=["a", "b"])
    assert two.held_out_of([{"step": 5, "a": 0.25, "b": 0.75}, {"step": 6, "a": 0.5}]) == {5: 0.5}
