"""The numbers of the page come from the committed metrics alone."""

import csv
import re
from pathlib import Path

import pytest

from experiments.lab import findings, metrics, protocol
from experiments.lab.protocol import HELD_OUT, Protocol


def written(path: Path, shares: dict[str, list[list[float]]]) -> dict[str, metrics.Steps]:
    """Write and read runs of three steps that measure, and one that does not."""
    for arm, runs in shares.items():
        for seed, values in enumerate(runs):
            steps = [
                {"step": step, HELD_OUT: value, "reward/mean": value, "response_length/mean": 30, "other": 1}
                for step, value in zip((10, 15, 20), values, strict=True)
            ]
            metrics.add(
                path, f"{arm}-seed{seed}", [*steps, {"step": 21, "reward/mean": None}], [HELD_OUT], f"base{seed}"
            )
    return metrics.read(path)


def test_arms_and_contrasts(tmp_path: Path) -> None:
    shares = {
        "dapo-none": [[0.5, 0.4, 0.3], [0.5, 0.5, 0.5]],
        "dapo-sft": [[0.6, 0.6, 0.6], [0.7, 0.7, 0.7]],
        "dapo-lagrangian": [[0.8] * 3, [0.9] * 3],
        "ppo-none": [[0.2, 0.2, 0.2]],
    }
    rules = Protocol(contrasts=[["sft", "none"], ["sft", "sft_no_gate"]])
    text = findings.tables(rules, written(tmp_path / "lab_final.csv", shares))
    assert "**DAPO**" in text and "**PPO**" in text
    none = next(line for line in text.splitlines() if line.startswith("| `none` | 2"))
    assert none.split(" | ")[2:] == ["0.450 (0.400 to 0.500)", "0.400", "1 of 2 |"]
    sft = next(line for line in text.splitlines() if line.startswith("| `sft` | 2"))
    assert sft.split(" | ")[2:] == ["0.650 (0.600 to 0.700)", "0.600", "0 of 2 |"]
    assert "| `none` | 0.500 | 0.450 | 0.400 | 0.450 |  | 30.0 |" in text, "by step, then what else was measured"
    contrast = next(line for line in text.splitlines() if "`sft` − `none`" in line)
    assert "+0.200 (+0.100 to +0.300) | 0.333 | 0.333 |" in contrast
    assert "| `lagrangian` − `none` | +0.400 (+0.300 to +0.500) | 0.333 | highest arm, seen afterwards |" in text
    assert "sft_no_gate" not in text, "an arm that has no runs"
    assert metrics.read(tmp_path / "lab_final.csv")["ppo-none-seed0"][-1] == {"step": 21}
    assert metrics.read(tmp_path / "none.csv") == {}


PAGE = Path(__file__).parents[3] / "experiments" / "results" / "lab.md"
RESULTS = Path(__file__).parents[3] / "experiments" / "results"
PROTOCOLS = sorted(path for path in RESULTS.glob("*.yaml") if findings.page(protocol.read(path), path))
"""The protocols of experiments that have completed a phase."""
NUMBER = r"[+−]?\d+\.\d+|\d+(?= %)"
INTERVAL = rf"(?:{NUMBER}) \([^)]*\d to [^)]*\d\)"


def test_the_page_has_the_numbers_of_each_arm_and_contrast() -> None:
    """A row of the page has no interval that the tables do not give for what its first cell names."""
    page, tables = (
        [line.split(" | ", 1) for line in text.splitlines() if line.startswith("| `") and " | " in line]
        for text in (
            PAGE.read_text(),
            "\n".join(findings.page(protocol.read(path), path) for path in PROTOCOLS),
        )
    )
    assert {name for name, row in page if re.search(INTERVAL, row)} >= {"| `sft`", "| `own_solved`", "| `sft` − `none`"}
    for name, row in page:
        given = "".join(other for first, other in tables if first == name)
        assert [number for number in re.findall(INTERVAL, row) if number not in given] == [], name


@pytest.mark.parametrize("path", sorted(RESULTS.glob("lab*.csv")), ids=lambda path: path.stem)
def test_all_runs_of_a_phase_began_with_one_base_model(path: Path) -> None:
    with path.open(newline="") as rows:
        bases = {row["base"] for row in csv.DictReader(rows)}
    assert len(bases) == 1
    if path.stem == "lab_final":
        (base,) = bases
        assert f"`{base}`" in (RESULTS / "lab_base" / "README.md").read_text(), "where its weights are"


def test_numbers_between_the_tables_are_those_of_the_tables() -> None:
    section = PAGE.read_text() + (RESULTS / "README.md").read_text()
    prose = re.sub(r"```.*?```|`[^`\n]*`|\]\([^)]*\)", "", section, flags=re.DOTALL)
    given = "95 %" + "".join(findings.page(protocol.read(path), path) + path.read_text() for path in PROTOCOLS)
    for pattern in (INTERVAL, NUMBER):
        assert sorted(set(re.findall(pattern, prose)) - set(re.findall(pattern, given))) == []
