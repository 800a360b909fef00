"""What is written from the blocks' fields and the rules: `python scripts/write_configuration.py`.

``config/refinement/online.yaml`` has the fields' defaults for Hydra, ``docs/configuration.md`` their meaning.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.dataclasses import is_pydantic_dataclass

from recipe.online_refiner.config.checks import RULES, rule_id
from recipe.online_refiner.config.fields import BLOCKS
from recipe.preflight import inputs, machine, names, trials  # noqa: F401  # their rules

DEFAULTS = Path(__file__).parents[1] / "recipe" / "online_refiner" / "config" / "refinement" / "online.yaml"
PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
YAML = """\
# @package _global_
# What this extension adds to a config of verl's. Written by `python scripts/write_configuration.py` from the
# fields in refiner_worker/config.py and recipe/online_refiner/config/fields.py. In a recipe of your own:
#   defaults: [ppo_trainer, refinement: online, _self_]
#   hydra.searchpath: [pkg://verl.trainer.config, pkg://recipe.online_refiner.config]
#   run_ppo(config, task_runner_class=recipe.online_refiner.task_runner.OnlineRefinerTaskRunner)
run_dir: runs/${trainer.project_name}/${trainer.experiment_name}
"""
HEAD = """\
# Every key of this extension

All other keys are verl's own. `dry_run=true` checks a config with its models and data, prints who runs where, and
exits. `python scripts/write_configuration.py` writes this page. More about the keys of `constraint`:
[constraint.md](constraint.md); about the refiner's placement and cost: [hosting.md](hosting.md).

| key of the run | meaning | default |
|---|---|---|
| `experiment` | a preset of [config/experiment](../recipe/online_refiner/config/experiment) | none |
| `control` | `own_solved`, `in_place_bare`, `in_place_other`, `in_place_constant`, `static_kl`: constraint.md | none |
| `twin` | `cpu` or `cpu_megatron`: the small twin of a preset, on this machine | none |
| `platform` | `gpu`, `cpu` or `cpu_megatron` | `gpu` |
| `run_dir` | where a run writes: [running.md](running.md) | `runs/PROJECT/EXPERIMENT` |
| `console` | `log`: verl's output; `progress`: a bar, a line a step, a summary | `log` |
| `dry_run` | check, print the plan and exit; `reward`: also call your own reward function on a made-up answer | false |
"""
RULES_HEAD = """\
## What is checked

Rules of [checks.py](../recipe/online_refiner/config/checks.py) and
[preflight](../recipe/preflight), checked before Ray starts. An error is one line: it says what to
set and ends with the rule's id. A key or a name that does not exist is shown with the nearest one that does. Names
are looked up in verl's own registries, after modules of yours (`actor_rollout_ref.model.external_lib`) are imported.

"""


def fields_of(block: Any) -> Iterator[tuple[str, str, str]]:
    """Yield name, default as YAML, and meaning of each field."""
    assert is_pydantic_dataclass(block)
    for name, field in block.__pydantic_fields__.items():
        value = field.get_default(call_default_factory=True)
        text = value if isinstance(value, str) else json.dumps(value)
        meaning = " ".join((field.description or "").split())
        yield name, text.replace('"', ""), meaning.replace("``", "`").replace("|", r"\|")


def defaults() -> str:
    """Return ``online.yaml``."""
    parts = [YAML]
    for block, fields in BLOCKS.items():
        parts.append("\n".join([f"{block}:", *(f"  {name}: {default}" for name, default, _ in fields_of(fields)), ""]))
    return "\n".join(parts)


def page() -> str:
    """Return ``configuration.md``."""
    parts = [HEAD]
    for block, fields in BLOCKS.items():
        rows = [f"| `{block}.{name}` | {meaning} | `{default}` |" for name, default, meaning in fields_of(fields)]
        parts.append("\n".join([f"## `{block}`", "", "| key | meaning | default |", "|---|---|---|", *rows, ""]))
    checked = [f"- `{rule_id(rule)}`: {(rule.__doc__ or '').strip()}\n" for rules in RULES.values() for rule in rules]
    return "\n".join([*parts, RULES_HEAD + "".join(checked).replace("``", "`")])


if __name__ == "__main__":
    DEFAULTS.write_text(defaults(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
