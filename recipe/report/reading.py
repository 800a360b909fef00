"""What a run has left behind, read for its page: from a folder or a URL, while the run goes on or when it is done."""

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import fsspec
import yaml

from recipe.online_refiner.pairs import FAILURES, Verdict, group_of
from recipe.runs.files import TOKENS, Records, objects_of

MAX_BYTES = 12 << 20
"""Of the refinements on a page, as the runs' records have them; then of numbers by token, a quarter of it."""
NO_MATTER = {"run_dir", "console", "dry_run", "preload", "ray_kwargs"}
NO_MATTER |= {f"trainer.{name}" for name in ("experiment_name", "project_name", "logger", "default_local_dir")}
"""Keys that do not make another run, beside seeds."""
Key = tuple[int, str]
"""A step and the key of a row in it."""


@dataclass(slots=True, kw_only=True)
class Contest:
    """How often a better answer came from the refiner, and how often from another answer of the policy.

    Over all responses that were refined and have siblings: other responses to the same prompt in the same step. Each
    sibling is what a second sample could have been.
    """

    num_responses: int = 0
    num_refined: int = 0
    """Of them, those that the refinement beats."""
    num_resampled: float = 0.0
    """Of them, those that a sibling drawn at random beats, on average."""

    def add(self, records: Iterable[dict[str, Any]]) -> None:
        """Count the responses of one part; it has the groups' records whole."""
        groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for record in records:
            groups[record["step"], group_of(record["key"])].append(record)
        for group in groups.values():
            for record in group:
                verdict = Verdict(record["verdict"])
                is_refined = verdict in (*FAILURES, Verdict.ACCEPTED, Verdict.NOT_BETTER)
                if is_refined and len(group) > 1:
                    self.num_responses += 1
                    self.num_refined += verdict is Verdict.ACCEPTED
                    self.num_resampled += sum(one["reward"] > record["reward"] for one in group) / (len(group) - 1)


@dataclass(slots=True, kw_only=True)
class Run:
    """One run."""

    path: str
    config: dict[str, Any]
    """Resolved; empty if the folder has none."""
    steps: list[dict[str, Any]]
    """Metrics, in order of the steps."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """On rollouts, the newest first; of older steps samples, if there are too many."""
    num_records: int = 0
    """How many the run has."""
    tokens: dict[Key, dict[str, Any]] = field(default_factory=dict)
    """The numbers by token of some of the records (``verl_glue/rows.py`` ``read_tokens``)."""
    contest: Contest = field(default_factory=Contest)
    stage: dict[str, Any] | None = None
    """What it did last (``recipe/runs/files.py`` ``write_stage``)."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def num_steps(self) -> int | None:
        """How many steps it shall make; None: unknown."""
        number = self.config.get("trainer", {}).get("total_training_steps") or (self.stage or {}).get("num_steps")
        return None if number is None else int(number)


@dataclass(slots=True, kw_only=True)
class Arm:
    """Runs that differ in their seed only."""

    name: str
    runs: list[Run]

    @property
    def refines(self) -> bool:
        """Whether its runs have a refiner."""
        return any(run.config.get("constraint", {}).get("mode") != "none" for run in self.runs)

    def setting(self, key: str) -> Any:
        """Return a key's value in the first run; None if its config does not have it."""
        value: Any = self.runs[0].config if self.runs else {}
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def values(self, metric: str) -> dict[int, list[float]]:
        """Return a metric's values by step, of all runs that have it there."""
        found: dict[int, list[float]] = defaultdict(list)
        for run in self.runs:
            for step in run.steps:
                if isinstance(step.get(metric), int | float):
                    found[step["step"]].append(float(step[metric]))
        return dict(sorted(found.items()))

    def numbers(self, metric: str) -> list[float]:
        """Return a metric's mean over the runs, step by step."""
        return [sum(values) / len(values) for values in self.values(metric).values()]

    def total(self, *metrics: str) -> float:
        """Return the sum over steps, runs and metrics."""
        return sum(sum(values) for metric in metrics for values in self.values(metric).values())

    @property
    def names(self) -> list[str]:
        """All metrics that any step has."""
        return sorted({name for run in self.runs for step in run.steps for name in step})

    @property
    def validation(self) -> str:
        """The first of verl's main validation metrics; empty: none is there."""
        return next((name for name in self.names if name.startswith("val-core/")), "")


def read_runs(paths: Sequence[str]) -> list[Arm]:
    """Read runs and return them by arms, in their order.

    Raises:
        ValueError: If a path is no run's.
    """
    return arms_of([read_run(path, MAX_BYTES // len(paths)) for path in dict.fromkeys(paths)])


def read_run(path: str, max_bytes: int = MAX_BYTES) -> Run:
    """Read a run.

    Args:
        path: Its ``run_dir``, or a URL that fsspec knows.
        max_bytes: Of records that are kept.

    Raises:
        ValueError: If there is no run.
    """
    system, folder = fsspec.core.url_to_fs(path)
    folder = folder.rstrip("/")

    def content(name: str) -> bytes:
        return system.cat_file(f"{folder}/{name}") if system.exists(f"{folder}/{name}") else b""

    config: dict[str, Any] = yaml.safe_load(content("config.yaml")) or {}
    lines = content("metrics.jsonl").splitlines(keepends=True)
    if not config and not lines:
        raise ValueError(f"{path}: no run is there, as it has no config.yaml: give the run_dir of a run")
    rows = objects_of(line for line in lines if line.endswith(b"\n"))
    steps = {row["step"]: row for row in rows if "step" in row}  # of a step that was done again, the last
    run = Run(path=folder, config=config, steps=[steps[step] for step in sorted(steps)])
    run.stage = next(objects_of([content("stage.json")]), None)
    own = f"{path.rstrip('/')}/refinements"
    url = (config.get("records") or {}).get("path")
    place = own if url is None or system.isdir(f"{folder}/refinements") else str(url)  # one that was moved has its own
    tokens = Records(f"{place}/{TOKENS}")
    numbers = _newest(tokens, tokens.parts()[::-1], max_bytes // 4, set())
    run.tokens = {(row["step"], row["key"]): row for part in numbers for row in part[1]}
    records = Records(place)
    for found, kept in _newest(records, records.parts()[::-1], max_bytes, set(run.tokens)):
        run.num_records += len(found)
        run.contest.add(found)
        run.records += kept
    return run


def _newest(
    records: Records, parts: list[str], max_bytes: int, wanted: set[Key]
) -> Iterator[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Yield all records of each part, and those that are kept: of old steps some, if they are more than the room.

    The newest parts may take half of the room as they are; each older one has an equal share of what is left, which
    the wanted records fill first.
    """
    draw, room = random.Random(0), float(max_bytes)
    for index, part in enumerate(parts):
        rows = [(row, len(line)) for line in records.lines_of(part) for row in objects_of([line])]
        share = room if room > max_bytes / 2 else room / (len(parts) - index)
        kept, used = rows, sum(size for _, size in rows)
        if used > share:
            draw.shuffle(rows)
            rows.sort(key=lambda one: (one[0]["step"], one[0]["key"]) not in wanted)
            kept, used = [], 0
            for row, size in rows:
                if used + size <= share:
                    kept.append((row, size))
                    used += size
        room -= used
        yield [row for row, _ in rows], [row for row, _ in kept]


def arms_of(runs: Sequence[Run]) -> list[Arm]:
    """Group runs that differ in their seed only; an arm is named by the keys in which the arms differ."""
    keys = [_flat(run) for run in runs]
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, flat in enumerate(keys):
        groups[tuple(sorted(flat.items())) or index].append(index)  # without a config: a run alone
    firsts = [keys[members[0]] for members in groups.values()]
    names = {name for flat in firsts for name in flat}
    differing = sorted(name for name in names if len({flat.get(name) for flat in firsts}) > 1)
    arms: list[Arm] = []
    for members, flat in zip(groups.values(), firsts, strict=True):
        given = [f"{name.rpartition('.')[2]}={flat.get(name)}" for name in differing]
        label = ", ".join(given) if 0 < len(given) <= 3 else runs[members[0]].name
        taken = {arm.name for arm in arms}
        arms.append(
            Arm(name=label if label not in taken else f"{label} ({len(arms) + 1})", runs=[runs[i] for i in members])
        )
    return arms


def _flat(run: Run) -> dict[str, str]:
    """Return a run's config as one value for each dotted key, without seeds, names and its own folder."""
    place = str(run.config.get("run_dir"))

    def walk(value: Any, name: str) -> Iterator[tuple[str, str]]:
        if isinstance(value, dict) and value:
            for key, below in value.items():
                yield from walk(below, f"{name}.{key}" if name else str(key))
        elif not name.endswith("seed"):
            yield name, str(value).replace(place, "RUN_DIR")

    values = walk(run.config, "")
    return {key: value for key, value in values if not any(f"{key}.".startswith(f"{one}.") for one in NO_MATTER)}
