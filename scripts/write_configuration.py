"""What is written from the blocks' fields and the rules: `python scripts/write_configuration.py`.

``config/refinement/online.yaml`` has the fields' defaults for Hydra, ``docs/configuration.md`` their meaning.
"""

import json
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of another checkout's environment too, this one's classes

from pydantic.dataclasses import is_pydantic_dataclass

from recipe.online_refiner.config.checks import RULES, rule_id
from recipe.online_refiner.config.fields import BLOCKS
from recipe.online_refiner.constraints import CONSTRAINTS
from recipe.online_refiner.constraints.base import Weighted
from recipe.preflight import inputs, machine, names, trials  # noqa: F401  # their rules
from refiner_worker.config import PLACEMENTS

DEFAULTS = Path(__file__).parents[1] / "recipe" / "online_refiner" / "config" / "refinement" / "online.yaml"
PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
YAML = """\
# @package _global_
# What this extension adds to a config of verl's. Written by `python scripts/write_configuration.py` from the
# fields of refiner_worker/config.py, recipe/online_refiner/constraints and config/fields.py. In a recipe of your own:
#   defaults: [ppo_trainer, refinement: online, _self_]
#   hydra.searchpath: [pkg://verl.trainer.config, pkg://recipe.online_refiner.config]
#   run_ppo(config, task_runner_class=recipe.online_refiner.verl_glue.task_runner.OnlineRefinerTaskRunner)
run_dir: runs/${trainer.project_name}/${trainer.experiment_name}
"""
DEFAULTS_OF = {"mode": "sft", "target": "in_place", "n_gpus_per_node": "none", "url": "none"}
"""Keys without a default in their class: what chooses a class has one in the config, the others must be set."""
MODES: dict[type[Weighted], str] = {
    one: f"`mode={mode}`" + (f" with `target={target}`" if target != "rewrite" else "")
    for (mode, target), one in reversed(CONSTRAINTS.items())
    if issubclass(one, Weighted)
}
"""Classes with keys of their own, and the first name of each."""
HEAD = """\
# Every key of this extension

All other keys are verl's own. `dry_run=true` checks a config with its models and data, prints who runs where, and
exits. `python scripts/write_configuration.py` writes this page. More about the keys of `constraint`:
[constraint.md](constraint.md); about the refiner's placement and cost: [hosting.md](hosting.md).

| key of the run | meaning | default |
|---|---|---|
| `experiment` | a preset of [config/experiment](../recipe/online_refiner/config/experiment) | none |
| `control` | `own_solved`: imitate the responses that the policy solved itself, refine nothing | none |
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


Key = tuple[str, str, str]
"""Name, default as YAML, and meaning of a key."""


def fields_of(block: Any) -> Iterator[Key]:
    """Yield the keys of a block's class."""
    assert is_pydantic_dataclass(block)
    for name, field in block.__pydantic_fields__.items():
        value = DEFAULTS_OF.get(name) if field.is_required() else field.get_default(call_default_factory=True)
        text = value if isinstance(value, str) else json.dumps(value)
        said = (
            vars(one).get("__pydantic_fields__", {}).get(name) for one in block.__mro__
        )  # a parent may have said it
        meaning = " ".join(next((one.description for one in said if one and one.description), "").split())
        yield name, text.replace('"', ""), meaning.replace("``", "`").replace("|", r"\|")


def common(classes: Collection[type]) -> list[Key]:
    """Return the keys that all classes of a block have with the same default and meaning."""
    first, *others = (list(fields_of(one)) for one in classes)
    return [key for key in first if all(key in keys for keys in others)]


def by_name() -> list[type[Weighted]]:
    """Return the classes of ``MODES`` in the order of ``CONSTRAINTS``."""
    return [one for one in dict.fromkeys(CONSTRAINTS.values()) if issubclass(one, Weighted)]


def defaults() -> str:
    """Return ``online.yaml``: what only some classes of a block have is null there, for the class's own default."""
    blocks = {name: list(fields_of(block)) for name, block in BLOCKS.items()}
    refiner = common(PLACEMENTS.values())
    own = {name: "null" for one in PLACEMENTS.values() for name, _, _ in fields_of(one)}
    own["rollout"] = "{}"  # Hydra adds keys to a block only
    shared = {name: default for name, default, _ in refiner}
    blocks = {
        "refiner": [(name, shared.get(name, null), "") for name, null in {**shared, **own}.items()],
        "constraint": [
            (name, "sft" if name == "mode" else "null", "")
            for name in dict.fromkeys(name for one in by_name() for name, _, _ in fields_of(one))
        ],
        **blocks,
    }
    parts = [YAML]
    for block, keys in blocks.items():
        parts.append("\n".join([f"{block}:", *(f"  {name}: {default}" for name, default, _ in keys), ""]))
    return "\n".join(parts)


def table(block: str, keys: Iterable[Key]) -> list[str]:
    """Return the lines of a table of keys."""
    rows = [f"| `{block}.{name}` | {meaning} | `{default}` |" for name, default, meaning in keys]
    return ["", "| key | meaning | default |", "|---|---|---|", *rows, ""]


def page() -> str:
    """Return ``configuration.md``."""
    shared = common(PLACEMENTS.values())
    lines = [HEAD, "## `refiner`", "", "All placements have these keys.", *table("refiner", shared)]
    for name, placement in PLACEMENTS.items():
        if own := [key for key in fields_of(placement) if key not in shared and key[0] != "placement"]:
            lines += [f"Placement `{name}` also has these.", *table("refiner", own)]
    lines += ["## `constraint`", "", "A key that the mode does not have is refused; `mode=none` reads no other."]
    shared = common(MODES)
    modes = ", ".join(dict.fromkeys(f"`{mode}`" for mode, _ in CONSTRAINTS))
    lines += table(
        "constraint", [(name, default, meaning or f"{modes}: see below.") for name, default, meaning in shared]
    )
    before: dict[str, list[Key]] = {}
    for one in by_name():
        keys = [key for key in fields_of(one) if key not in shared and key[2]]
        parents = [said for said, has in before.items() if has and all(key in keys for key in has)]
        own = [key for key in keys if not any(key in before[said] for said in parents)]
        also = f" It has the keys of {' and '.join(parents)} too." if parents else ""
        doc = " ".join((one.__doc__ or "").split())
        lines += [f"{MODES[one]}, η = {one.DEFAULT_ETA:g} by default: {doc}{also}"]
        lines += table("constraint", own) if own else [""]
        before[MODES[one]] = keys
    for block, fields in BLOCKS.items():
        lines += [f"## `{block}`", *table(block, fields_of(fields))]
    checked = [f"- `{rule_id(rule)}`: {(rule.__doc__ or '').strip()}\n" for rules in RULES.values() for rule in rules]
    return "\n".join([*lines, RULES_HEAD + "".join(checked).replace("``", "`")])


if __name__ == "__main__":
    DEFAULTS.write_text(defaults(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
