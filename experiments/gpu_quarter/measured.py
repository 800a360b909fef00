"""Writes the constants of recipe/sizing that a GPU has measured, from the JSON files of jobs."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from recipe.online_refiner import metric_names

FILE = Path(__file__).resolve().parents[2] / "recipe" / "sizing" / "measured.yaml"
HEAD = "# Written by `python -m experiments.gpu_quarter page`. One run each of a model of 1.5B parameters.\n"
JOBS = ("sized-none", "sized-static-kl", "sized-sft")
"""The jobs with one engine, with one engine and a reference worker, and with two engines."""


def constants(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the measured constants with their source; None if one of ``JOBS`` has no step.

    Args:
        results: The JSON files by job.
    """
    found = {name: results[name]["figures"] for name in JOBS if results.get(name, {}).get("figures", {}).get("steps")}
    if len(found) < len(JOBS):
        return None
    none, static_kl, sft = (found[name]["steps"][-1] for name in JOBS)
    asleep = sft[metric_names.MEMORY_ASLEEP] - static_kl[metric_names.MEMORY_ASLEEP]
    host = static_kl["actor/perf/cpu_memory_used_gb"] - none["actor/perf/cpu_memory_used_gb"]
    planned = "\n".join(found["sized-static-kl"]["dry_run"])
    return {
        "device": results["sized-sft"]["device"],
        "date": results["sized-sft"]["date"],
        "asleep_gib": round(asleep, 2),
        "training_gib": round(static_kl[metric_names.MEMORY_ASLEEP] - asleep - part(planned, "actor's state"), 2),
        "reference_copies": round(host / part(planned, "parameters"), 2),
    }


def part(planned: str, name: str) -> float:
    """Return the GiB of a part that the dry run's table has."""
    found = re.search(rf"{name} (\d+\.\d)", planned)
    if found is None:
        raise ValueError(f"the dry run's table has no part {name!r}")
    return float(found[1])


def write(results: Mapping[str, Mapping[str, Any]], file: Path = FILE) -> None:
    """Write the file if there are measurements."""
    if (found := constants(results)) is not None:
        file.write_text(HEAD + yaml.safe_dump(found, sort_keys=False))
