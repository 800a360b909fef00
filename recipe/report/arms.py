"""Which runs are seeds of one arm: of one name, with configs that differ in nothing that changes what is learned."""

import json
import os
import re
from dataclasses import dataclass

from recipe.report.runs import Run, printable

SEED = re.compile(r"(^|[._])seed$")
LABEL = re.compile(r"[.](project|experiment)_name$")
"""verl's traces have names of their own, taken from the trainer's."""
IRRELEVANT = {
    *("run_dir", "dry_run", "console", "trainer.default_local_dir", "trainer.logger"),
    *("trainer.resume_mode", "trainer.resume_from_path"),
    *("measure.num_kl_rollouts", "measure.cross_entropy_all_every"),
    "sizing.gpu_memory_gib",
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


def group(runs: list[Run]) -> list[Arm]:
    """Sort runs into arms by their configs, in the order of the runs."""
    heaps: dict[str, list[Run]] = {}
    for run in runs:
        heaps.setdefault(_fingerprint(run), []).append(run)
    arms = [Arm(name=_name(heap), runs=heap) for heap in heaps.values()]
    _tell_apart(arms)
    return arms


def differences(arms: list[Arm]) -> dict[str, list[str]]:
    """Return the settings in which arms differ, with the value in each arm."""
    settings = [_settings(arm.runs[0]) for arm in arms]
    names = sorted({name for of_arm in settings for name in of_arm})
    table = {name: [of_arm.get(name, "-") for of_arm in settings] for name in names}
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


def _name(runs: list[Run]) -> str:
    """Return the experiment's name without what tells its seeds apart."""
    names = list(dict.fromkeys(_experiment(run) for run in runs))
    return names[0] if len(names) == 1 else os.path.commonprefix(names).rstrip("-_./ 0123456789")


def _tell_apart(arms: list[Arm]) -> None:
    """Add to equal names the settings that differ, as few as it takes, those of the method first."""
    names = [arm.name for arm in arms]
    for name in {name for name in names if names.count(name) > 1}:
        same = [arm for arm in arms if arm.name == name]
        different = differences(same)
        for setting in sorted(different, key=_importance)[:MAX_NAMED_SETTINGS]:
            for arm, value in zip(same, different[setting], strict=True):
                arm.name = f"{arm.name} {setting.rsplit('.', 1)[-1]}={value}"[:MAX_NAME]
            if len({arm.name for arm in same}) == len(same):
                break
    for place, arm in enumerate(arms):
        if arm.name in {other.name for other in arms[:place]}:
            arm.name += f" ({place + 1})"


def _importance(setting: str) -> tuple[bool, bool, str]:
    return setting != "constraint.mode", not setting.startswith(("constraint.", "refiner.")), setting
