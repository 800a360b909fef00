"""The numbers of the page come from the committed metrics alone."""

from pathlib import Path

from recipe.lab import findings, metrics
from recipe.lab.protocol import HELD_OUT, Protocol


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
        "ppo-none": [[0.2, 0.2, 0.2]],
    }
    rules = Protocol(contrasts=[["sft", "none"], ["sft", "sft_no_gate"]])
    text = findings.tables(rules, written(tmp_path / "lab_final.csv", shares))
    assert "**DAPO**" in text and "**PPO**" in text
    none = next(line for line in text.splitlines() if line.startswith("| `none` | 2"))
    assert none.split(" | ")[2:6] == ["0.450 (0.400 to 0.500)", "", "0.400", "1 of 2"]
    sft = next(line for line in text.splitlines() if line.startswith("| `sft` |"))
    assert sft.split(" | ")[2:4] == ["0.650 (0.600 to 0.700)", "1.000 (1.000 to 1.000)"]
    contrast = next(line for line in text.splitlines() if "`sft` − `none`" in line)
    assert "+0.200 (+0.100 to +0.300) | 0.333 | 0.333 |" in contrast
    assert "sft_no_gate" not in text, "an arm that has no runs"
    assert metrics.read(tmp_path / "lab_final.csv")["ppo-none-seed0"][-1] == {"step": 21}
    assert metrics.read(tmp_path / "none.csv") == {}
    assert metrics.bases(tmp_path / "lab_final.csv") == {"base0", "base1"}


def test_a_base_is_known_by_its_weights(tmp_path: Path) -> None:
    prints = []
    for weights in (b"1", b"2", b"1"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        prints.append(metrics.fingerprint(tmp_path))
    assert prints[0] == prints[2] != prints[1]
