"""The map's tasks, model, bases, runner and page."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.map import bases, design, page, runner
from experiments.map.design import Spec
from experiments.map.model import LAYERS, Cache, Model, generate
from experiments.map.tasks import (
    EOS,
    GO,
    LONGEST,
    LONGEST_ANSWER,
    NAMES,
    PARTS,
    PROMPT_LENGTHS,
    REFINERS,
    REWARDS,
    RULES,
    VOCABULARY,
    Question,
    questions,
)

DIGITS = [3, 0, 9, 4, 4, 7]


def test_rules() -> None:
    assert {name: list(rule(DIGITS)) for name, rule in RULES.items()} == {
        "reverse": [7, 4, 4, 9, 0, 3],
        "rotate": [0, 9, 4, 4, 7, 3],
        "swap": [0, 3, 4, 9, 7, 4],
        "successor": [4, 1, 0, 5, 5, 8],
        "complement": [6, 9, 0, 5, 5, 2],
        "sort": [0, 3, 4, 4, 7, 9],
        "sort_down": [9, 7, 4, 4, 3, 0],
        "sums": [3, 9, 3, 8, 1, 0],
    }


def test_rewards_are_graded() -> None:
    question = Question(NAMES.index("reverse"), tuple(DIGITS))
    graded = {
        (*question.solution, EOS): 1.0,
        (7, 4, 4, 9, 0, 5, EOS): -0.3 + 1.3 * 5 / 6,
        (1, 1, 1, 1, 1, 1, EOS): -0.3,
        (7, 4, 4, 9, 0, EOS): -0.6,
        (EOS,): -0.6,
        (7, 4, 4, 9, 0, GO, EOS): -1.0,
        tuple([7] * LONGEST_ANSWER): -1.0,
    }
    assert {answer: REWARDS[question.grade(list(answer))] for answer in graded} == pytest.approx(graded)


def test_no_question_is_in_two_parts_or_comes_twice() -> None:
    for one, other in itertools.combinations(PARTS.values(), 2):
        assert not set(one.tolist()) & set(other.tolist())
    assert sum(map(len, PARTS.values())) == 10**6
    asked = questions("policy", 5000, np.random.default_rng(1))
    assert len({one.digits for one in asked}) == 5000
    own = set(PARTS["policy"].tolist())
    assert all(int("".join(map(str, one.digits))) in own for one in asked)
    held_out = {one.digits for one in runner.held_out()}
    assert not held_out & {one.digits for one in asked}


def test_prompts_have_one_length_and_all_that_the_refiner_is_told() -> None:
    question = Question(0, tuple(DIGITS))
    answers = [[EOS], [1, 2, EOS], [1] * LONGEST_ANSWER]
    refine = [question.refine_prompt(kind, answer, 2) for answer in answers for kind in REFINERS]
    assert {len(one) for one in refine} == {PROMPT_LENGTHS["refine"]}
    assert {len(question.shown_prompt(answer)) for answer in answers} == {PROMPT_LENGTHS["shown"]}
    assert len(question.prompt) == PROMPT_LENGTHS["question"]
    assert len(set(map(tuple, refine))) == len(refine), "kind and answer are told"
    assert question.refine_prompt("r05", [EOS], 2) != question.refine_prompt("r05", [EOS], 3), "and the reward"
    assert max(max(one) for one in refine) < VOCABULARY


def test_the_cache_changes_no_logits() -> None:
    torch.manual_seed(0)
    model, ids = Model(VOCABULARY, LONGEST), torch.randint(0, VOCABULARY, (3, 12))
    whole = model(ids)
    shape = (3, 5, LONGEST, 16)
    cache = Cache([torch.empty(shape) for _ in range(LAYERS)], [torch.empty(shape) for _ in range(LAYERS)])
    parts = [model(ids[:, :8], cache), *(model(ids[:, place : place + 1], cache) for place in range(8, 12))]
    assert 200_000 < sum(weight.numel() for weight in model.parameters()) < 500_000
    torch.testing.assert_close(torch.cat(parts, 1), whole[:, 7:], atol=1e-5, rtol=1e-5)


def test_answers_follow_the_models_chances_and_end_at_eos() -> None:
    torch.manual_seed(0)
    model, prompts = Model(VOCABULARY, LONGEST), torch.zeros(4000, 1, dtype=torch.long)
    with torch.no_grad():
        model.head.weight *= 8
        chances = model(prompts[:1])[0, -1].softmax(-1)
    answers = generate(model, prompts, 5, EOS, torch.Generator().manual_seed(1))
    found = torch.bincount(torch.tensor([answer[0] for answer in answers]), minlength=VOCABULARY) / len(answers)
    assert (found - chances).abs().max() < 4 * (0.25 / len(answers)) ** 0.5
    assert all(EOS not in answer[:-1] and (answer[-1] == EOS or len(answer) == 5) for answer in answers)


def test_demonstrations_mend_spoil_and_repeat_as_often_as_they_say() -> None:
    rng, kind = np.random.default_rng(0), bases.Kind(0.2, 0.7, 0.5)
    for name, mends in (("sums", 0.2), ("complement", 0.7)):
        question = Question(NAMES.index(name), tuple(DIGITS))
        given = [*bases.broken(question.solution, 2, rng), EOS]
        answers = [tuple(bases.refinement(question, kind, given, 6, rng)) for _ in range(2000)]
        mended = answers.count((*question.solution, EOS)) / 2000
        repeated = answers.count(tuple(given)) / 2000
        assert mended == pytest.approx(mends, abs=0.04)
        assert repeated == pytest.approx((1 - mends) / 2, abs=0.04)


def test_a_base_is_what_its_seed_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bases, "LESSONS", {"weak": 2, "strong": 1})
    found = []
    for folder in ("one", "two"):
        monkeypatch.setattr(bases, "FOLDER", tmp_path / folder)
        bases.base.cache_clear()
        found.append(runner.fingerprint(bases.base("strong", 1)))
    weak = runner.fingerprint(bases.base("weak", 1))
    bases.base.cache_clear()
    assert found[0] == found[1] != weak


def line(spec: Spec, solved: list[float]) -> dict[str, Any]:
    """Return a run's line."""
    own = {name: getattr(spec, name) for name in Spec.__dataclass_fields__}
    return {**own, "solved": solved, "entropy": [0.5], "base": "f00d", "tokens": 1000, "cpu_s": 10.0}


def test_runs_are_done_once_and_lines_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = [Spec("weak", "none", "", seed, 150) for seed in range(4)]
    path, done = tmp_path / "run.jsonl", []

    def run(spec: Spec) -> dict[str, Any]:
        done.append(spec.seed)
        if spec.seed == 2 and done.count(2) == 1:
            raise KeyboardInterrupt
        return line(spec, [0.1] * 6)

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(runner, "LOCKS", tmp_path / "locks")
    with runner.claimed(specs[0].key) as is_ours, pytest.raises(KeyboardInterrupt):
        assert is_ours
        runner.work(specs, path)
    assert [one["seed"] for one in design.read(path)] == [1], "the first is another worker's, the third was killed"
    assert runner.work(specs, path) == 3
    assert done == [1, 2, 0, 2, 3]
    assert [design.spec_of(one) for one in design.read(path)] == [specs[1], specs[0], specs[2], specs[3]]
    assert path.read_text().count("\n") == 4


def test_tuning_is_equal_and_its_best_weight_is_taken() -> None:
    specs = list(design.tuning())
    for point in design.POINTS:
        counts = {arm: sum((one.point, one.arm) == (point, arm) for one in specs) for arm in design.ARMS}
        assert set(counts.values()) == {0, 8}, "four weights with two seeds, or none"
    assert not {one.seed for one in specs} & set(design.SEEDS)
    own = [one for one in specs if (one.point, one.arm) in {("weak", "sft"), ("weak", "kl_in_loss")}]
    lines = [line(one, [0.0] * 4 + [0.5 - abs(one.weight - 0.1)] * 2) for one in own]
    assert design.choose(lines) == {"weak": {"kl_in_loss": 0.1, "sft": 0.1}}
    assert design.choose(lines[:-1]) == {"weak": {"kl_in_loss": 0.1}} or design.choose(lines[1:]) == {
        "weak": {"sft": 0.1}
    }
    counted = list(design.counted({"weak": {"sft": 0.1}}))
    assert {(one.point, one.arm) for one in counted} >= {("weak", "sft"), ("weak", "none"), ("strong", "none")}
    assert "kl_in_loss" not in {one.arm for one in counted}, "its weight is not known"
    assert len({one.key for one in counted}) == len(counted)


def test_the_design_is_large_enough() -> None:
    every = {point: {arm: 0.1 for arm in design.ARMS} for point in design.POINTS}
    specs = list(design.counted(every))
    assert len(specs) >= 600
    assert len(design.SEEDS) >= 20
    assert design.LONG >= 500


def test_pairs_needed() -> None:
    moved = {(0.1, 901): 0.0, (0.1, 902): 0.3, (0.3, 901): 0.04, (0.3, 902): 0.3}  # the seed's 0.3 is in no difference
    specs = {Spec("weak", "sft", "", seed, 150, weight): more for (weight, seed), more in moved.items()}
    lines = [line(spec, [0.0] * 4 + [0.5 + more] * 2) for spec, more in specs.items()]
    deviation, number = design.pairs_needed(lines, 0.03, 0.05, 0.8)
    assert deviation == pytest.approx(0.04 / 2**0.5)  # of the differences 0.04 and 0
    assert number == 7, "(2.8 * 0.0283 / 0.03)^2 = 6.98"


def test_outcomes_are_the_last_fifth_of_a_horizon() -> None:
    curve = [0.0] * 24
    curve[4:6] = [0.2, 0.4]  # steps 125 and 150
    curve[20:24] = [0.5, 0.6, 0.7, 0.8]  # steps 525 to 600; 500 is not in (480, 600]? it is
    curve[19] = 0.4
    assert design.outcome({"solved": curve}, 150) == pytest.approx(0.3)
    assert design.outcome({"solved": curve}, 600) == pytest.approx(0.6)


def test_the_page_is_computed_from_the_lines(tmp_path: Path) -> None:
    rng, lines = np.random.default_rng(0), []
    for seed in range(12):
        noise = 0.01 * rng.standard_normal()
        for arm, kind, level in (
            ("none", "", 0.5),
            ("kl_in_loss", "", 0.5),
            ("resample", "", 0.55),
            *(("sft", kind, 0.45 + 0.03 * place) for place, kind in enumerate(REFINERS[:6])),
        ):
            steps = design.LONG if arm == "none" else design.SHORT
            value = level + noise + 0.005 * rng.standard_normal()
            lines.append(line(Spec("weak", arm, kind, seed, steps, 0.1), [value] * (steps // design.EVERY)))
    base = {"strength": "weak", "seed": 1, "base": "f00d", "solved": 0.1, "better/second": 0.4}
    base |= {f"better/{kind}": 0.1 + 0.15 * place for place, kind in enumerate(REFINERS[:6])}
    begun = [one | {"steps": design.SHORT, "solved": one["solved"][:6]} for one in lines if one["arm"] == "none"]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, begun + lines + begun)))
    (tmp_path / "bases.jsonl").write_text(json.dumps(base))
    page.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert f"Runs that count: {len(lines)}." in text and "| weak | none | 0.1 | 12, 12 long |" in text
    rows = {
        cells[0]: cells[1:]
        for cells in ([cell.strip() for cell in row.split("|")[1:-1]] for row in text.splitlines())
        if cells
    }
    effect, p, number = rows["sft, strong refiner - static KL"]
    assert float(effect.split()[0]) == pytest.approx(0.07, abs=0.01)
    low, high = (float(one) for one in effect.split("(")[1].rstrip(")").split(" to "))
    assert low < float(effect.split()[0]) < high
    assert float(p) < 0.01
    assert number == "12"
    assert rows["static KL - none, steep, long"] == ["-", "-", "0"]
    assert float(rows[page.SLOPE][0].split()[0]) == pytest.approx(0.2, abs=0.02), "0.03 of 0.15"
    assert (tmp_path / "map.png").stat().st_size > 5000
    first = (tmp_path / "map.png").read_bytes(), text
    page.write(tmp_path)
    assert first == ((tmp_path / "map.png").read_bytes(), (tmp_path / "README.md").read_text()), "by the lines alone"


def test_the_committed_page_is_that_of_the_committed_runs(tmp_path: Path) -> None:
    for file in design.RESULTS.glob("*.jsonl"):
        shutil.copy(file, tmp_path)
    page.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert text == (design.RESULTS / "README.md").read_text()
    start = text.index("| contrast |")
    table = text[start : text.index("\n\n", start)]
    assert table in (design.RESULTS.parents[2] / "docs" / "results.md").read_text()
