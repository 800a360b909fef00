"""Which runs are seeds of one arm, and how arms are called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recipe.report.arms import differences, group
from recipe.report.runs import read_runs


def settings(name: str = "x", *, seed: int = 1, eta: float = 0.1, **more: Any) -> dict[str, Any]:
    return {
        "trainer": {"experiment_name": name, "logger": ["console", name]},
        **{
            "data": {"seed": seed, "other_seed": seed, "rollout": {"seed": None}},
            "constraint": {"eta": eta},
            "actor_rollout_ref": {"rollout": {"trace": {"experiment_name": name}}},
            "lists": [1, {"a": 2}],
        },
        **more,
    }


def arms_of(configs: list[dict[str, Any]], write_run: Callable) -> dict[str, list[str]]:
    paths = [write_run(f"run{place}", [0.0], config=config) for place, config in enumerate(configs)]
    runs, problems = read_runs(paths)
    assert not problems
    return {arm.name: [run.name for run in arm.runs] for arm in group(runs)}


def test_runs_that_differ_in_seed_name_and_folder_are_one_arm(write_run: Callable, tmp_path: Path) -> None:
    configs = [settings(f"apps_seed{n}", seed=n, dump=f"{tmp_path}/run{n}/dump") for n in range(2)]
    assert arms_of(configs, write_run) == {"apps": ["run0", "run1"]}


@pytest.mark.parametrize(
    ("configs", "arms"),
    [
        (
            [settings(eta=0.1), settings(eta=0.2), settings("y"), settings(eta=0.2, seed=2)],
            {"x eta=0.1": ["run0"], "x eta=0.2": ["run1", "run3"], "y": ["run2"]},
        ),
        (
            [settings(constraint={"mode": mode}, algorithm={"gamma": mode}) for mode in ("none", "sft")],
            {"x mode=none": ["run0"], "x mode=sft": ["run1"]},
        ),
        (
            [settings(constraint={"mode": mode, "eta": eta}) for mode, eta in (("none", 1), ("sft", 1), ("sft", 2))],
            {"x mode=none eta=1": ["run0"], "x mode=sft eta=1": ["run1"], "x mode=sft eta=2": ["run2"]},
        ),
    ],
)
def test_equal_names_get_as_few_settings_as_tell_them_apart_the_mode_first(
    configs: list[dict[str, Any]], arms: dict[str, list[str]], write_run: Callable
) -> None:
    assert arms_of(configs, write_run) == arms


@pytest.mark.parametrize(
    ("first", "second", "arms"),
    [
        ("apps_seed1", "apps_seed12", ["apps"]),
        ("apps-s1", "apps-s2", ["apps"]),
        ("apps_10", "apps_12", ["apps_10", "apps_12"]),
        ("eta_1e-2_run1", "eta_1e-2_run2", ["eta_1e-2"]),
        ("before_fix", "after_fix", ["before_fix", "after_fix"]),
    ],
)
def test_names_of_one_arm_differ_in_a_seed_at_the_end(
    first: str, second: str, arms: list[str], write_run: Callable
) -> None:
    assert list(arms_of([settings(first), settings(second)], write_run)) == arms


def test_the_settings_that_differ_between_arms(write_run: Callable) -> None:
    configs = [settings(eta=0.1), settings(eta=0.2, seed=3), settings(eta=0.2, extra={"on": True})]
    runs, _ = read_runs([write_run(f"run{place}", [0.0], config=config) for place, config in enumerate(configs)])
    found = differences(group(runs))
    assert found == {"constraint.eta": ["0.1", "0.2", "0.2"], "extra.on": ["-", "-", "True"]}


def test_runs_of_the_same_folder_name_are_called_by_more_of_their_path(write_run: Callable, tmp_path: Path) -> None:
    paths = [write_run(f"{name}/run", [0.0]) for name in "ab"]
    runs, problems = read_runs([*paths, paths[0], tmp_path / "nothing"])
    assert [run.name for run in runs] == ["a/run", "b/run"], "each once"
    assert problems == [f"{tmp_path / 'nothing'}: not a run directory (config.yaml is missing)"]
