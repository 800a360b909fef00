"""The reader of a run's files for its page, from a folder or a URL, during the run or after it."""

import random
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import fsspec
import pandas
import yaml

from recipe.online_refiner.method.pairs import FAILURES, Verdict, group_of
from recipe.runs.files import TOKENS, Records, objects_of
from recipe.runs.thumbnails import FOLDER, Thumbnails

MAX_BYTES = 12 << 20
"""The largest size in bytes of all records on a page; numbers per token may take another quarter of it."""
MAX_IMAGE_BYTES = 8 << 20
"""The largest size in bytes of all images on a page."""
NO_MATTER = ["run_dir", "console", "dry_run", "preload", "ray_kwargs"]
NO_MATTER += [f"trainer.{name}" for name in ("experiment_name", "project_name", "logger", "default_local_dir")]
"""Keys and blocks, beside seeds, in which runs of one arm may differ."""
Key = tuple[int, str]
"""A step and the key of a row in it."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run."""

    path: str
    config: dict[str, Any]
    """The resolved config by dotted keys; empty if the folder has none."""
    steps: list[dict[str, Any]]
    """The metrics of each step, in order."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """The records of rollouts, the newest first; of older steps only a sample, if there are too many."""
    num_records: int = 0
    """The number of all records that the run has."""
    tokens: dict[Key, dict[str, Any]] = field(default_factory=dict)
    """The numbers per token of some of the records (``verl_glue/rows.py`` ``read_tokens``)."""
    contest: list[tuple[str, bool, float]] = field(default_factory=list)
    """The results of :func:`contest` on all records."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """The starts of the run, in order (``recipe/runs/starts.py``); empty for a run of an earlier release."""
    meanings: dict[str, str] = field(default_factory=dict)
    """The meaning of each metric that only the run's constraint has; empty for a run of an earlier release."""
    thumbnails: dict[str, bytes] = field(default_factory=dict)
    """Small copies (JPEG) of the images in the records' prompts, by name; of many, the first."""
    stage: dict[str, Any] | None = None
    """The last stage that the run wrote (``recipe/runs/files.py`` ``write_stage``)."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def num_done(self) -> int:
        """The last step that is finished; 0: none."""
        return int(self.steps[-1]["step"]) if self.steps else 0

    @property
    def num_steps(self) -> int | None:
        """The number of steps planned; None: unknown."""
        number = self.config.get("trainer.total_training_steps") or (self.stage or {}).get("num_steps")
        return None if number is None else int(number)


@dataclass(kw_only=True)
class Arm:
    """Runs that differ in their seed only."""

    name: str
    runs: list[Run]

    @property
    def refines(self) -> bool:
        """Whether the arm's runs have a refiner."""
        return any(run.config.get("constraint.mode") != "none" for run in self.runs)

    def setting(self, key: str) -> Any:
        """Return a key's value in the first run; None if its config does not have it."""
        return self.runs[0].config.get(key) if self.runs else None

    @cached_property
    def table(self) -> pandas.DataFrame:
        """The metrics of all runs, one row per run and step; NaN: not measured."""
        return pandas.DataFrame([step for run in self.runs for step in run.steps], dtype=float)

    def curve(self, metric: str) -> pandas.DataFrame:
        """Return a metric's mean, min and max over the runs, for each step that has it."""
        by_step = self.table.reindex(columns=["step", metric]).groupby("step")[metric]
        return by_step.agg(["mean", "min", "max"]).dropna()

    def numbers(self, metric: str) -> list[float]:
        """Return a metric's mean over the runs, step by step."""
        return self.curve(metric)["mean"].tolist()

    def total(self, *metrics: str) -> float:
        """Return the sum over steps, runs and metrics."""
        return float(self.table.reindex(columns=list(metrics)).sum().sum())

    @property
    def validation(self) -> str:
        """The first of verl's main validation metrics that is a mean, not the best of several responses; or empty."""
        names = (name for name in sorted(self.table) if name.startswith("val-core/") and "/mean@" in name)
        return next(names, "")


def read_runs(paths: Sequence[str]) -> list[Arm]:
    """Read runs and return them by arms, in their order.

    Raises:
        ValueError: If a path has no run.
    """
    different = dict.fromkeys(path.rstrip("/") for path in paths)
    return arms_of([read_run(path, MAX_BYTES // len(different)) for path in different])


def read_run(path: str, max_bytes: int = MAX_BYTES) -> Run:
    """Read a run.

    Args:
        path: The ``run_dir``, or a URL that fsspec knows.
        max_bytes: The largest size of all records that are kept.

    Raises:
        ValueError: If there is no run.
    """
    system, folder = fsspec.core.url_to_fs(path)
    folder = folder.rstrip("/")

    def content(name: str) -> bytes:
        return system.cat_file(f"{folder}/{name}") if system.exists(f"{folder}/{name}") else b""

    config = flat(yaml.safe_load(content("config.yaml")) or {})
    lines = content("metrics.jsonl").splitlines()
    if not config and not lines:
        raise ValueError(f"{path}: no run is there, as it has no config.yaml: give the run_dir of a run")
    steps = {row["step"]: row for row in objects_of(lines) if "step" in row}  # of a step that was done again, the last
    run = Run(path=folder, config=config, steps=[steps[step] for step in sorted(steps)])
    run.starts = list(objects_of(content("starts.jsonl").splitlines()))
    run.meanings = next(objects_of([content("meanings.json")]), {})
    run.stage = next(objects_of([content("stage.json")]), None)
    place = config.get("records.path")
    if place is None or system.isdir(f"{folder}/refinements"):  # one that was moved has its own
        place = f"{path.rstrip('/')}/refinements"
    for _, kept in _newest(Records(f"{place}/{TOKENS}"), max_bytes // 4, set()):
        run.tokens.update({(row["step"], row["key"]): row for row in kept})
    for found, kept in _newest(Records(place), max_bytes, run.tokens):
        run.num_records += len(found)
        run.contest += contest(found)
        run.records += kept
    run.thumbnails = dict(_thumbnails(Thumbnails(f"{place}/{FOLDER}"), run.records))
    return run


def _thumbnails(files: Thumbnails, records: Iterable[dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """Yield small copies of the records' images, by name, of at most MAX_IMAGE_BYTES together."""
    room = MAX_IMAGE_BYTES
    for name in dict.fromkeys(name for record in records for name in record.get("images", ())):
        content = files.read(name)
        room -= len(content or b"")
        if content and room >= 0:
            yield name, content


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config by dotted keys."""
    return pandas.json_normalize(config).to_dict("records")[0]


def _newest(
    records: Records, max_bytes: int, wanted: Container[Key]
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield, part by part, all its records and the records to keep, which take at most ``max_bytes`` together.

    The newest parts are kept whole until they take half of that size. Each older part has an equal share of the rest,
    which the wanted records fill first.
    """
    draw, room, parts = random.Random(0), float(max_bytes), records.parts()
    for index, part in enumerate(reversed(parts)):
        rows = [(row, len(line)) for line in records.lines_of(part) for row in objects_of([line])]
        share = room if room > max_bytes / 2 else room / (len(parts) - index)
        found = [row for row, _ in rows]
        if sum(size for _, size in rows) > share:
            draw.shuffle(rows)
            rows.sort(key=lambda one: (one[0]["step"], one[0]["key"]) not in wanted)
        filled = accumulate(size for _, size in rows)
        rows = [row for row, until in zip(rows, filled, strict=True) if until <= share]
        room -= sum(size for _, size in rows)
        yield found, [row for row, _ in rows]


def contest(records: Iterable[dict[str, Any]]) -> Iterator[tuple[str, bool, float]]:
    """Yield for each refined response (its prompt, whether the refinement beats it, the share of siblings that do).

    Siblings are the other responses to the same prompt in the same step; a response without siblings is left out. Each
    sibling stands for a second sample of the policy.

    Args:
        records: The records of whole groups.
    """
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        if record["reward"] is not None:
            groups[f"{record['step']} {group_of(record['key'])}"].append(record)
    for prompt, group in groups.items():
        for one in group:
            if len(group) > 1 and one["verdict"] in (*FAILURES, Verdict.ACCEPTED, Verdict.NOT_BETTER):
                better = sum(other["reward"] > one["reward"] for other in group)
                yield prompt, one["verdict"] == Verdict.ACCEPTED, better / (len(group) - 1)


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """Group runs that differ in their seed only; an arm is named by the keys in which the arms differ."""
    groups: dict[Any, list[Run]] = defaultdict(list)
    for index, run in enumerate(runs):
        groups[tuple(sorted(_settings(run).items())) or index].append(run)  # without a config: a run alone
    firsts = [_settings(members[0]) for members in groups.values()]
    names = sorted({name for settings in firsts for name in settings})
    differing = [name for name in names if len({settings.get(name) for settings in firsts}) > 1]
    arms: list[Arm] = []
    for members, settings in zip(groups.values(), firsts, strict=True):
        given = [f"{name.rpartition('.')[2]}={settings.get(name)}" for name in differing]
        name = ", ".join(given) if 0 < len(given) <= 3 else members[0].name
        is_taken = name in {arm.name for arm in arms}
        arms.append(Arm(name=f"{name} ({len(arms) + 1})" if is_taken else name, runs=members))
    return arms


def _settings(run: Run) -> dict[str, str]:
    """Return the settings that decide a run's arm: its config without seeds, names and its own folder."""
    place = str(run.config.get("run_dir"))
    without = tuple(f"{name}." for name in NO_MATTER)
    return {
        key: str(value).replace(place, "RUN_DIR")
        for key, value in run.config.items()
        if not key.endswith("seed") and not f"{key}.".startswith(without)
    }
