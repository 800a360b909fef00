"""Which runs are seeds of one arm: of one name, with configs that differ in nothing that changes what is learned."""

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from recipe.report.runs import Run, printable

SEED = re.compile(r"(^|[._])seed$")
LABEL = re.compile(r"[.](project|experiment)_name$")
"""verl's traces have names of their own, taken from the trainer's."""
IRRELEVANT = {
    *("run_dir", "dry_run", "console", "trainer.default_local_dir", "trainer.logger"),
    *("trainer.resume_mode", "trainer.resume_from_path"),
    *("measure.num_kl_rollouts", "measure.cross_entropy_all_every"),
    *("sizing.gpu_memory_gib", "sizing.host_memory_gib", "sizing.constants"),
}
"""Settings beside the seeds in which the runs of one arm may differ; experiment names, in a number at the end."""
SEED_SUFFIX = re.compile(r"[-_./ ](seed|run|s)[-_=]?\d+$")
NUMBER_SUFFIX = re.compile(r"[-_./ ]?\d+$")
MAX_NAMED_SETTINGS = 3
MAX_NAME = 60


@dataclass(slots=True, kw_only=True)
class Arm:
    """Runs of one configuration.

    Example: ``Arm(name="apps_dapo", runs=[first_seed, second_seed])``.
    """

    name: str
    runs: list[Run]


def group(runs: list[Run], named: dict[str, list[Path]]) -> list[Arm]:
    """Sort runs into arms: as named, the rest by their configs, in the order of the runs.

    Args:
        runs: All runs.
        named: Folders of the arms that the user named.

    Raises:
        ValueError: If a folder is in two arms.
    """
    owners: dict[Path, str] = {}
    for name, paths in named.items():
        for path in {Path(os.path.abspath(path)) for path in paths}:
            if owners.setdefault(path, name) != name:
                raise ValueError(f"{path} is in arm {owners[path]} and in arm {name}")
    heaps: dict[tuple[bool, str], list[Run]] = {}
    for run in runs:
        is_named = run.path in owners
        heaps.setdefault((is_named, owners[run.path] if is_named else _fingerprint(run)), []).append(run)
    arms = [Arm(name=printable(key) if is_named else _name(heap), runs=heap) for (is_named, key), heap in heaps.items()]
    _tell_apart(arms)
    return arms


def differences(arms: list[Arm]) -> dict[str, list[str]]:
    """Return the settings in which arms differ, with the value in each arm; ``several`` where its runs disagree."""
    settings = [[_settings(run) for run in arm.runs] for arm in arms]
    names = sorted({name for runs in settings for run in runs for name in run})
    table = {name: [_agreed(run.get(name, "-") for run in runs) for runs in settings] for name in names}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def seeds(run: Run) -> str:
    """Return the seeds of a run, each value once; where none is set, nothing."""
    found = (value for name, value in run.config.items() if SEED.search(name) and value is not None)
    return ", ".join(dict.fromkeys(map(str, found)))


def _settings(run: Run) -> dict[str, str]:
    """Return what makes a run's arm; paths in the run directory are the same in every run."""
    folder = str(run.config.get("run_dir") or run.path)
    return {
        name: printable(str(value)).replace(folder, "RUN_DIR")
        for name, value in run.config.items()
        if not (name in IRRELEVANT or SEED.search(name) or LABEL.search(name))
    }


def _fingerprint(run: Run) -> str:
    return json.dumps([NUMBER_SUFFIX.sub("", _experiment(run)), _settings(run)], sort_keys=True)


def _experiment(run: Run) -> str:
    return SEED_SUFFIX.sub("", printable(str(run.config.get("trainer.experiment_name") or run.name)))


def _agreed(values: Iterable[str]) -> str:
    first, *rest = set(values)
    return "several" if rest else first


def _name(runs: list[Run]) -> str:
    """Return the experiment's name without what tells its seeds apart."""
    names = list(dict.fromkeys(_experiment(run) for run in runs))
    return names[0] if len(names) == 1 else os.path.commonprefix(names).rstrip("-_./ 0123456789")


def _tell_apart(arms: list[Arm]) -> None:
    """Add to equal names as few of the settings that differ as it takes, those of the method first."""
    by_name: dict[str, list[Arm]] = {}
    for arm in arms:
        by_name.setdefault(arm.name, []).append(arm)
    for same in (heap for heap in by_name.values() if len(heap) > 1):
        different = differences(same)
        for setting in sorted(different, key=_importance)[:MAX_NAMED_SETTINGS]:
            for arm, value in zip(same, different[setting], strict=True):
                arm.name = f"{arm.name} {setting.rsplit('.', 1)[-1]}={value}"[:MAX_NAME]
            if len({arm.name for arm in same}) == len(same):
                break
    taken: dict[str, int] = {}
    for arm in arms:
        taken[arm.name] = taken.get(arm.name, 0) + 1
        if taken[arm.name] > 1:
            arm.name += f" ({taken[arm.name]})"


def _importance(setting: str) -> tuple[bool, bool, str]:
    return setting != "constraint.mode", not setting.startswith(("constraint.", "refiner.")), setting
