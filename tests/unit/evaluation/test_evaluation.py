"""What the evaluation's command says where something is missing, and the rates that it makes of evalplus' results."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.evaluation import command as evaluation


def test_rates_are_means_over_problems_and_plus_needs_both_kinds_of_tests() -> None:
    statuses = {"a": ["pass pass", "pass fail", "fail pass", "fail fail"], "b": ["pass pass"], "c": ["timeout pass"]}
    answers = {
        problem: [dict(zip(("base_status", "plus_status"), one.split(), strict=True)) for one in of_problem]
        for problem, of_problem in statuses.items()
    }
    rates = evaluation.pass_at_1("mbpp", answers)
    assert rates == {"mbpp": pytest.approx((0.5 + 1) / 3), "mbpp+": pytest.approx((0.25 + 1) / 3)}
    for one in (one for of_problem in answers.values() for one in of_problem):
        one["plus_status"] = None
    rates = evaluation.pass_at_1("mbpp", answers)
    assert rates == {"mbpp": pytest.approx((0.5 + 1) / 3)}, "with --base-only nothing is known of the others"


def test_results_of_another_model_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    for model in ("one", "other"):
        (tmp_path / f"{model}_eval_results.json").write_text('{"eval": {"Mbpp/2": []}}')
        if model == "one":
            assert evaluation.results_in(tmp_path) == {"Mbpp/2": []}
    with pytest.raises(ValueError, match="of 2 models or settings: give another --output"):
        evaluation.results_in(tmp_path)


def test_without_evalplus_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "evalplus", None)
    assert evaluation.main(["--model", "m"]) == 2
    assert capsys.readouterr().err == f"error: evalplus is not installed: {evaluation.INSTALL}\n"


@pytest.mark.parametrize("dataset", evaluation.DATA)
def test_without_data_it_says_which_variable_names_a_file(dataset: str, tmp_path: Path) -> None:
    pytest.importorskip("evalplus")
    command = [sys.executable, "-m", "recipe.commands", "evaluate", "--model", "m", "--dataset", dataset]
    variable = evaluation.DATA[dataset]
    environment = {**os.environ, variable: str(tmp_path / "none.jsonl")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "none.jsonl" in done.stderr and f"set {variable} to a copy" in done.stderr
