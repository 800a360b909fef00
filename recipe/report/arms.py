"""Which runs are seeds of one arm: of one name, with configs that differ in nothing that changes what is learned."""

import json
import re
from dataclasses import dataclass

from recipe.report.runs import Run, printable

IGNORED = re.compile(
    r"(^|[._])seed$|[.](project|experiment)_name$|^(run_dir|dry_run|console|sizing[.].*)$"
    r"|^trainer[.](default_local_dir|logger|resume_.*)$|^measure[.](num_kl_rollouts|cross_entropy_all_every)$"
)
"""Settings in which the runs of one arm may differ."""
SEED_SUFFIX = re.compile(r"[-_./ ](seed|run|s)[-_=]?\d+$")
"""Of an experiment's name, which the runs of one arm may not share."""


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
        fingerprint = json.dumps([_experiment(run), _settings(run)], sort_keys=True)
        heaps.setdefault(fingerprint, []).append(run)
    arms = [Arm(name=_experiment(heap[0]), runs=heap) for heap in heaps.values()]
    for name in {arm.name for arm in arms}:
        if len(same := [arm for arm in arms if arm.name == name]) > 1:
            _tell_apart(same)
    return arms


def differences(arms: list[Arm]) -> dict[str, list[str]]:
    """Return the settings in which arms differ, with the value in each arm."""
    settings = [_settings(arm.runs[0]) for arm in arms]
    names = sorted({name for of_arm in settings for name in of_arm})
    table = {name: [of_arm.get(name, "-") for of_arm in settings] for name in names}
    return {name: values for name, values in table.items() if len(set(values)) > 1}


def _settings(run: Run) -> dict[str, str]:
    """Return what makes a run's arm; paths in the run directory are the same in every run."""
    folder = str(run.config.get("run_dir") or run.path)
    return {
        name: printable(str(value)).replace(folder, "RUN_DIR")
        for name, value in run.config.items()
        if not IGNORED.search(name)
    }


def _experiment(run: Run) -> str:
    return SEED_SUFFIX.sub("", printable(str(run.config.get("trainer.experiment_name") or run.name)))


def _tell_apart(arms: list[Arm]) -> None:
    """Add to equal names as few of the settings that differ as it takes, those of the method first."""

    def importance(setting: str) -> tuple[bool, bool, str]:
        return setting != "constraint.mode", not setting.startswith(("constraint.", "refiner.")), setting

    different = differences(arms)
    for setting in sorted(different, key=importance):
        for arm, value in zip(arms, different[setting], strict=True):
            arm.name += f" {setting.rsplit('.', 1)[-1]}={value}"
        if len({arm.name for arm in arms}) == len(arms):
            return
