"""The numbers of the page come from the committed metrics alone."""

from pathlib import Path

from recipe.lab import findings
from recipe.lab.protocol import HELD_OUT, Protocol

HEADER = ["arm", "run", "seed", "step", "reward/mean", "response_length/mean", HELD_OUT]


def written(path: Path, shares: dict[str, list[list[float]]]) -> Path:
    lines = [",".join(HEADER)]
    for arm, runs in shares.items():
        for seed, values in enumerate(runs):
            for step, value in zip((10, 15, 20), values, strict=True):
                lines.append(f"{arm},{arm}-seed{seed},{seed},{step},{value},30,{value}")
            lines.append(f"{arm},{arm}-seed{seed},{seed},21,,,")
    path.write_text("\n".join(lines) + "\n")
    return path


def test_arms_and_contrasts(tmp_path: Path) -> None:
    shares = {
        "dapo-none": [[0.5, 0.4, 0.3], [0.5, 0.5, 0.5]],
        "dapo-sft": [[0.6, 0.6, 0.6], [0.7, 0.7, 0.7]],
        "ppo-none": [[0.2, 0.2, 0.2]],
    }
    text = findings.tables(Protocol(), findings.read(written(tmp_path / "final.csv", shares)))
    assert "**DAPO**" in text and "**PPO**" in text
    none = next(line for line in text.splitlines() if line.startswith("| `none` | 2"))
    assert none.split(" | ")[2:6] == ["0.450 (0.400 to 0.500)", "", "0.400", "1 of 2"]
    sft = next(line for line in text.splitlines() if line.startswith("| `sft` |"))
    assert sft.split(" | ")[2:4] == ["0.650 (0.600 to 0.700)", "1.000 (1.000 to 1.000)"]
    contrast = next(line for line in text.splitlines() if "`sft` − `none`" in line)
    assert "+0.200 (+0.100 to +0.300) | 0.333 | 0.333 |" in contrast
    assert "sft_no_gate" not in text, "an arm that has no runs"
