"""What a page knows of runs: which are one arm, what of a half-written or resumed run counts, what is sampled."""

import json
import math
import re
from pathlib import Path
from typing import Any

import fsspec
import pytest
from made_run import config, half_a_line, make_run, metrics, record, tokens

from recipe.online_refiner.method.pairs import Verdict
from recipe.report.command import main
from recipe.report.curves import pictures
from recipe.report.findings import MEANINGS, control_of, facts, findings, table
from recipe.report.page import diff, write_page
from recipe.report.reading import Arm, read_run, read_runs
from recipe.report.words import VERDICTS
from recipe.runs.files import TOKENS, Records, RunDir
from recipe.runs.starts import control_command


def test_runs_that_differ_in_their_seed_only_are_one_arm(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / f"{mode}-{seed}", seed=seed, constraint__mode=mode)
        for mode in ("none", "sft", "penalty")
        for seed in (1, 2)
    ]
    arms = read_runs(list(map(str, folders)))
    assert [arm.name for arm in arms] == ["mode=none", "mode=sft", "mode=penalty"]
    assert len(read_runs([f"{folders[0]}", f"{folders[0]}/"])[0].runs) == 1
    assert [[run.name for run in arm.runs] for arm in arms][1] == ["sft-1", "sft-2"]
    assert arms[1].curve("reward/mean").loc[2].tolist() == pytest.approx([-0.27, -0.28, -0.26])


def test_of_a_step_that_was_done_again_the_last_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 3)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": 2, **metrics(2), "reward/mean": 7.0}) + "\n")
    half_a_line(folder / "metrics.jsonl")
    with (folder / "refinements" / "000003.w0.jsonl").open("a") as lines:
        lines.write('{"step": 3, "key": "half')
    run = read_run(str(folder))
    assert [step["step"] for step in run.steps] == [1, 2, 3]
    assert [step["reward/mean"] for step in run.steps] == pytest.approx([-0.38, 7.0, -0.18])
    assert (run.num_records, len(run.tokens)) == (12, 3)


def test_the_metrics_of_ones_own_constraint_have_pictures(tmp_path: Path) -> None:
    """A metric that only one run's constraint has is drawn with its meaning, and one without a value is not."""
    name, plain, own = (
        "constraint/gain",
        make_run(tmp_path / "plain"),
        make_run(tmp_path / "own", refiner__template="x"),
    )
    written = RunDir(own)
    written.write_meanings({name: "r(a') - r(a)", "mine/lost": "never written"})
    written.write_metrics(3, {**metrics(3), name: 0.25, "mine/not_declared": 1.0})
    found = {one["title"]: one for one in pictures(read_runs([str(plain), str(own)]))}
    assert found[name]["caption"] == "r(a') - r(a)" and not {"mine/lost", "mine/not_declared"} & found.keys()
    assert [(list(line["x"]), list(line["y"])) for line in found[name]["figure"]["data"]] == [([3], [0.25])]
    assert not [title for title in found if title.startswith("constraint/") and title != name]


def test_a_run_that_is_in_an_object_store(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    fsspec.filesystem("memory").put(str(folder), "/store/run", recursive=True)
    run = read_run("memory://store/run")
    assert (run.name, len(run.steps), run.num_records, len(run.tokens)) == ("run", 3, 12, 3)


def test_of_many_refinements_the_newest_are_kept_and_of_old_steps_some(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 20, records=[record(f"a_{index}_0") for index in range(50)])
    run = read_run(str(folder), max_bytes=100_000)  # a step has 15 kB
    by_step = [sum(one["step"] == step for one in run.records) for step in range(1, 21)]
    assert run.num_records == 1000
    assert by_step[-3:] == [50, 50, 50] and all(0 < number < 20 for number in by_step[:10])
    assert all((one["step"], "a_0_0") in run.tokens for one in run.records)
    assert sum(one["key"] == "a_0_0" for one in run.records) == 20, "those with numbers by token stay"


def test_refining_is_compared_with_answering_again(tmp_path: Path) -> None:
    (arm,) = read_runs([str(make_run(tmp_path / "run", 1))])
    # a: accepted and truncated, no sibling is better; b: accepted, its sibling is better; the other is solved.
    contest = sorted(arm.runs[0].contest)
    assert contest == [("1 a", False, 0.0), ("1 a", True, 0.0), ("1 b", True, 1.0)]
    (found,) = [one for one in findings(arm) if "again" in one.title]
    assert (found.level, found.figure) == ("note", "67% against 33%") and "chance" in found.says


@pytest.mark.parametrize(
    ("refined", "level"),
    [([True] * 30, "good"), ([False] * 30, "act"), ([True, False] * 15, "note")],  # the last one: chance
)
def test_whether_refining_wins_is_told_where_prompts_agree(tmp_path: Path, refined: list[bool], level: str) -> None:
    (arm,) = read_runs([str(make_run(tmp_path / "run", 1))])
    arm.runs[0].contest = [(f"1 {prompt}", wins, 0.5) for prompt, wins in enumerate(refined)]
    (found,) = [one for one in findings(arm) if "again" in one.title]
    assert found.level == level and ("chance" in found.says) == (level == "note")


@pytest.mark.parametrize(
    ("settings", "skipped"),
    [({"algorithm__filter_groups": {"enable": True}}, "too_long"), ({}, "not_chosen"), ({}, "over_budget")],
)
def test_no_verdict_where_rewards_chose_what_was_refined(
    tmp_path: Path, settings: dict[str, Any], skipped: str
) -> None:
    folder = make_run(tmp_path / "run", 1, **settings)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": 1, **metrics(1), f"refiner/skipped/{skipped}": 1}) + "\n")
    (found,) = [one for one in findings(*read_runs([str(folder)])) if "again" in one.title]
    assert (found.level, found.key) == ("note", "") and "not fair" in found.says


@pytest.mark.parametrize(("longest", "share"), [(48, "40%"), (47, "0%")])
def test_only_responses_as_long_as_the_limit_are_cut(tmp_path: Path, longest: int, share: str) -> None:
    folder = make_run(tmp_path / "run", 2)
    lengths = [{"response_length/max": longest, "response_length/clip_ratio": ratio} for ratio in (0.5, 0.3)]
    lines = [json.dumps({"step": step, **metrics(step), **own}) for step, own in enumerate(lengths, start=1)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    found = {one.title: one for one in findings(*read_runs([str(folder)]))}
    assert found["Cut responses"].figure == share


def test_a_response_is_cut_by_the_limit_of_its_own_run(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / str(seed), 1, seed=seed) for seed in (1, 2)]
    for folder, longest in zip(folders, (48, 40), strict=True):
        lengths = {"response_length/max": longest, "response_length/clip_ratio": 0.5}
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, **metrics(1), **lengths}) + "\n")
    found = {one.title: one for one in findings(*read_runs(list(map(str, folders))))}
    assert found["Cut responses"].figure == "25%", "half of those of one run"


def test_validation_is_a_mean_and_not_the_best_of_several_responses(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 0)
    several = {"val-core/sums/acc/best@4/mean": 0.75, "val-core/sums/acc/mean@4": 0.25}
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, **several}) + "\n")
    (arm,) = read_runs([str(folder)])
    assert arm.validation == "val-core/sums/acc/mean@4"


def test_a_reward_that_is_no_number_is_shown_as_none(tmp_path: Path) -> None:
    records = [record("a_0_0", reward=math.nan), record("a_1_0"), record("a_2_0", reward=0.5)]
    folder = make_run(tmp_path / "run", 1, records=records)
    assert "NaN" in (folder / "refinements" / "000001.w0.jsonl").read_text()
    arms = read_runs([str(folder)])
    assert [one["reward"] for one in arms[0].runs[0].records] == [None, 0.0, 0.5]
    assert arms[0].runs[0].contest == [("1 a", True, 1.0), ("1 a", True, 0.0)] and b'"reward":null' in write_page(arms)


WORSE = {
    "refiner/num_accepted": 0,
    "reward/zero_std_groups": 0.75,
    "kl_ref/k3": 0.9,
    "refiner/exposed_s": 5,
}


@pytest.mark.parametrize(
    ("settings", "others"),
    [
        ({"constraint__mode": "penalty"}, {"Dead groups": "other problems"}),
        ({"algorithm__filter_groups": {"enable": True}}, {"Dead groups": "other problems"}),
        ({"constraint__mode": "none"}, {"Dead groups": "other problems", "KL": "a lower actor"}),
        ({"constraint__rescue_dead_groups": True}, {"Dead groups": "other problems"}),
        ({"refiner__placement": "external"}, {"Accepted refinements": "another refiner.template or model at"}),
        ({"refiner__placement": "shared"}, {"Cost of refining": "a lower refiner.max_refinements_per_group"}),
    ],
)
def test_a_key_is_one_that_the_run_can_set(tmp_path: Path, settings: dict[str, Any], others: dict[str, str]) -> None:
    def keys(folder: Path) -> dict[str, str]:
        with (folder / "metrics.jsonl").open("a") as lines:
            lines.write(json.dumps({"step": 1, **metrics(1), **WORSE}) + "\n")
        return {one.title: one.key for one in findings(*read_runs([str(folder)]))}

    usual, found = keys(make_run(tmp_path / "usual", 1)), keys(make_run(tmp_path / "run", 1, **settings))
    for title, key in others.items():
        assert found[title] != usual[title] and found[title].startswith(key)


def test_the_docs_explain_each_tile_in_the_pages_words() -> None:
    text = (Path(__file__).parents[3] / "docs" / "report.md").read_text()
    assert set(re.findall(r"^- \*\*(.+?)\*\*:? (.+)$", text, flags=re.MULTILINE)) == set(MEANINGS.items())


def test_each_verdict_has_words_of_its_own() -> None:
    assert VERDICTS.keys() == set(Verdict) and len(set(VERDICTS.values())) == len(Verdict)


def test_the_control_has_the_runs_own_overrides() -> None:
    command = ["online-refiner", "train", "constraint.mode=sft", "trainer.experiment_name=mine", "a=b c"]
    assert control_command(command, "runs/mine/") == (
        "online-refiner train trainer.experiment_name=mine-none 'a=b c' run_dir=runs/mine-none constraint.mode=none"
    )


def test_one_validation_is_no_change(tmp_path: Path) -> None:
    (arm,) = read_runs([str(make_run(tmp_path / "run", 1))])
    assert table([arm])["validation"].tolist() == ["+0.120"]


def test_several_data_files_are_named(tmp_path: Path) -> None:
    (arm,) = read_runs([str(make_run(tmp_path / "run", 1))])
    arm.runs[0].config["data.train_files"] = ["data/a.parquet", "data/b.parquet"]
    assert "data a.parquet b.parquet" in facts(arm)


def test_groups_of_one_are_not_dead(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 1, actor_rollout_ref__rollout={"n": 1})
    assert "Dead groups" not in {one.title for one in findings(*read_runs([str(folder)]))}


def test_what_should_change_names_its_figure_and_its_key(tmp_path: Path) -> None:
    worse = {"refiner/failed/truncated": 2, "refiner/failed/leak": 1, "refiner/failed/thought": 1}
    worse |= {"reward/zero_std_groups": 0.75, "kl_ref/k3": 0.9, "refiner/exposed_s": 5}
    folder = make_run(tmp_path / "run", 1)
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write(json.dumps({"step": 1, **metrics(1), **worse}) + "\n")
    (arm,) = read_runs([str(folder)])
    found = {one.title: one for one in findings(arm)}
    for title, figure, key in (
        ("Cut refinements", "67%", "refiner.response_length"),
        ("Leaks", "33%", "refiner.reject_leaks"),
        ("Cut thoughts", "33%", "refiner.thought_length"),
        ("Dead groups", "75%", "constraint.rescue_dead_groups=true"),
        ("KL", "0.9", "constraint.eta"),
        ("Cost of refining", "50%", "refiner.placement"),
    ):
        assert found[title].level != "good" and found[title].figure == figure and key in found[title].key
    assert not findings(Arm(name="empty", runs=[])), "nothing is said of what was not measured"


def test_a_run_in_which_nothing_was_refined_says_why(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 2)
    steps = [{"step": step, **metrics(step), "refiner/num_attempted": 0} for step in (1, 2)]
    lines = [json.dumps(step | {"refiner/skipped/no_answer": 3}) + "\n" for step in steps]
    (folder / "metrics.jsonl").write_text("".join(lines))
    said = [one.says for one in findings(*read_runs([str(folder)])) if one.title == "What never happened"]
    assert len(said) == 1 and "6 responses end within their thought" in said[0]
    assert "refiner.rewrites=response" in said[0]


@pytest.mark.parametrize(
    ("num_runs", "ahead", "level"),
    [(1, 10, "note"), (5, 10, "good"), (5, 1, "note")],  # of few runs; clear; as much as seeds differ
)
def test_an_arm_is_compared_with_one_without_a_refiner(tmp_path: Path, num_runs: int, ahead: int, level: str) -> None:
    folders = [
        make_run(tmp_path / f"{mode}-{seed}", seed=seed + ahead * (mode == "sft"), constraint__mode=mode)
        for mode in ("sft", "none")
        for seed in range(2, 2 + num_runs)
    ]
    with_it, without = read_runs(list(map(str, folders)))
    assert control_of([with_it, without]) is without
    found = {one.title: one for one in findings(with_it, without)}["Does the refiner help?"]
    assert (found.level, found.figure) == (level, f"+{0.02 * ahead:.3f}") and "The validation" in found.says
    assert ("chance" in found.says) == (level == "note")
    assert "Does the refiner help?" not in {one.title for one in findings(without, without)}


def test_without_such_an_arm_nobody_can_tell(tmp_path: Path) -> None:
    (arm,) = read_runs([str(make_run(tmp_path / "run"))])
    found = findings(arm)[0]
    assert (found.title, found.figure) == ("Does the refiner help?", "cannot tell")
    assert "constraint.mode=none" in found.key


@pytest.mark.parametrize(
    ("rewards", "level"),
    [
        ([0.1 * step for step in range(8)], "note"),  # few steps
        ([0.02 * step for step in range(40)], "good"),
        ([-0.02 * step for step in range(40)], "act"),
        ([0.5 + 0.2 * (step % 2) + 0.004 * step for step in range(40)], "note"),  # 0.13, and twice the noise is 0.14
        ([0.5 + 0.2 * (step % 2) + 0.005 * step for step in range(40)], "good"),
    ],
)
def test_a_change_of_the_reward_is_compared_with_the_steps_own(
    tmp_path: Path, rewards: list[float], level: str
) -> None:
    folder = make_run(tmp_path / "run", 1)
    lines = [json.dumps({"step": n, **metrics(n), "reward/mean": one}) + "\n" for n, one in enumerate(rewards, 1)]
    (folder / "metrics.jsonl").write_text("".join(lines))
    found = {one.title: one for one in findings(*read_runs([str(folder)]))}["Reward"]
    assert found.level == level and ("chance" in found.says) == (level == "note")


def test_a_diff_is_of_whole_words_and_has_both_texts() -> None:
    assert diff("a = b", "a = c") == [(0, "a = "), (-1, "b"), (1, "c")]
    assert diff("a", None) == [(0, "a")]
    old, new = "def f(x):\n\treturn x * 3\ud83d", "def f(x, y):\n\treturn 3 * x"
    parts = diff(old, new)
    assert "".join(text for kind, text in parts if kind <= 0) == old
    assert "".join(text for kind, text in parts if kind >= 0) == new


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert main([str(tmp_path / "nowhere")]) == 2
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path}/nowhere: no run is there, as it has no config.yaml: give the run_dir of a run\n"
    )
    assert main([str(make_run(tmp_path / "run"))]) == 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 1e6


def test_records_of_another_place_are_found(tmp_path: Path) -> None:
    elsewhere = "memory://elsewhere/refinements"
    folder = make_run(tmp_path / "run", 0, records__path=elsewhere)
    Records(elsewhere).write(1, "w0", [record("a_0_0")])
    Records(f"{elsewhere}/{TOKENS}").write(1, "w0", [tokens("a_0_0")])
    run = read_run(str(folder))
    assert (run.num_records, len(run.tokens), run.steps) == (1, 1, [])
    assert config(folder)["run_dir"] == str(folder)
