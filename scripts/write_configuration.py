"""What is written from the blocks' fields: `python scripts/write_configuration.py`.

``config/refinement/online.yaml`` has the fields' defaults for Hydra, ``docs/configuration.md`` their meaning, and
``docs/metrics.md`` the meaning of the metrics.
"""

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # of another checkout's environment too, this one's classes

from pydantic.dataclasses import is_pydantic_dataclass

from recipe.online_refiner.config.fields import BLOCKS
from recipe.online_refiner.method.constraint import Weighted
from recipe.online_refiner.method.modes import CONSTRAINTS
from recipe.online_refiner.method.pairs import FAILURES, SKIPPED, Verdict
from recipe.online_refiner.metric_names import (
    ETA_OF,
    EXTRA,
    FAILED_RATIO_OF,
    IMPROVEMENT_RATIO_OF,
    MEANING,
    REPLICAS_OF,
    failed_for,
    skipped_for,
)
from refiner_worker.config import PLACEMENTS

DEFAULTS = Path(__file__).parents[1] / "recipe" / "online_refiner" / "config" / "refinement" / "online.yaml"
PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
METRICS_PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
YAML = """\
# @package _global_
# What this extension adds to a config of verl's. Written by `python scripts/write_configuration.py` from the
# fields of refiner_worker/config.py, recipe/online_refiner/method and config/fields.py. In a recipe of your own:
#   defaults: [ppo_trainer, refinement: online, _self_]
#   hydra.searchpath: [pkg://verl.trainer.config, pkg://recipe.online_refiner.config]
#   run_ppo(config, task_runner_class=recipe.online_refiner.verl_glue.task_runner.OnlineRefinerTaskRunner)
run_dir: runs/${trainer.project_name}/${trainer.experiment_name}
"""
DEFAULTS_OF = {"mode": "sft", "target": "in_place", "n_gpus_per_node": "none", "url": "none"}
"""Keys without a default in their class: what chooses a class has one in the config, the others must be set."""
MODES: dict[type[Weighted], tuple[str, str]] = {
    one: name for name, one in reversed(CONSTRAINTS.items()) if issubclass(one, Weighted)
}
"""Classes with keys of their own, and mode and target that first name each."""
HEAD = """\
# Every key of this extension

All other keys are verl's own. Before Ray starts a run checks its config, models and data. An error is one line: it says
what to set, and ends with the id of its rule. `python scripts/write_configuration.py` writes this page: each key with
its default, and in brackets the placements or modes that alone have it.

- `experiment`: a preset of [config/experiment](../recipe/online_refiner/config/experiment).
- `twin`: the small twin of a preset, on this machine: `cpu`, `cpu_megatron`; `math` of `gsm8k_grpo` and `math_dapo`,
  `puzzles` of `reasoning_gym` ([run_twins.sh](../experiments/run_twins.sh) makes their data).
- `control`: `own_solved` imitates the responses that the policy solved; by `resample` pi_0 answers again.
- `platform` = `gpu`, or `cpu`, `cpu_megatron`.
- `run_dir` = `runs/PROJECT/EXPERIMENT`: where a run writes ([running.md](running.md#what-a-run-writes)).
- `console` = `log`: verl's output; `progress` has a bar, a line a step, a summary.
- `dry_run` = `false`: `true` checks, prints who runs where, and exits; `reward` also tries your reward function.
- `preload` = `true`: workers are forks of one process ([development.md](development.md#how-a-job-starts)).

## `refiner`

More: [refiner.md](refiner.md), [hosting.md](hosting.md).
"""


METRICS_HEAD = f"""\
# Every metric of this extension

`metrics.jsonl` and the trackers have these metrics for each step, beside verl's own. Sums and seconds are always there,
and are 0 if nothing happened. A mean or a largest value is missing if nothing was measured. a is the response, a' its
refinement, r the reward, pi_theta the policy, and pi_0 the reference model. `python scripts/write_configuration.py`
writes this page.

Some names end with a name of yours:

- `{EXTRA}NAME`: mean of the number `NAME` that your reward function returns beside `score`, over the rollouts that have
  it. It is missing if one of its values is not a finite number.
- `{IMPROVEMENT_RATIO_OF}SOURCE`, with `refiner.by_source` or `constraint.by_source`: share of the rollouts of the data
  source with an accepted refinement.
- `{FAILED_RATIO_OF}SOURCE`, in the same runs: share of the data source's rollouts whose refinement failed.
- `{REPLICAS_OF}SOURCE`, with `refiner.by_source`: replicas of the data source's model, or servers by URL, that were
  alive when the step asked them.
- `{ETA_OF}SOURCE`, with `constraint.by_source`: weight of the data source's responses in this step.
"""


Key = tuple[str, str, str]
"""Name, default as YAML, and meaning of a key."""


def fields_of(block: Any) -> Iterator[Key]:
    """Yield the keys of a block's class."""
    assert is_pydantic_dataclass(block)
    for name, field in block.__pydantic_fields__.items():
        if field.init is False:  # made when the block is read, so no key
            continue
        value = DEFAULTS_OF.get(name) if field.is_required() else field.get_default(call_default_factory=True)
        text = value if isinstance(value, str) else json.dumps(value)
        said = (
            vars(one).get("__pydantic_fields__", {}).get(name) for one in block.__mro__
        )  # a parent may have said it
        meaning = " ".join(next((one.description for one in said if one and one.description), "").split())
        yield name, text.replace('"', ""), meaning.replace("``", "`")


def owned(classes: Mapping[type, str]) -> dict[Key, str]:
    """Return the keys of a block's classes, and which classes have each with this default and meaning."""
    owners: dict[Key, list[str]] = {}
    for one, name in classes.items():
        for key in fields_of(one):
            owners.setdefault(key, []).append(name)
    return {key: "all" if len(has) == len(classes) else ", ".join(has) for key, has in owners.items()}


def by_name() -> list[type[Weighted]]:
    """Return the classes of ``MODES`` in the order of ``CONSTRAINTS``."""
    return [one for one in dict.fromkeys(CONSTRAINTS.values()) if issubclass(one, Weighted)]


def defaults() -> str:
    """Return ``online.yaml``: what only some classes of a block have is null there, for the class's own default."""
    blocks = {name: list(fields_of(block)) for name, block in BLOCKS.items()}
    own = {name: "null" for one in PLACEMENTS.values() for name, _, _ in fields_of(one)}
    own["rollout"] = "{}"  # Hydra adds keys to a block only
    shared = {name: default for (name, default, _), has in placements().items() if has == "all"}
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


def placements() -> dict[Key, str]:
    """Return the keys of ``refiner``, and the placements that have each."""
    return owned({one: f"`{name}`" for name, one in PLACEMENTS.items()})


def listed(block: str, keys: Mapping[Key, str]) -> list[str]:
    """Return a line for each key, with what has it: first what all have, then key by key."""
    names = [name for name, _, _ in keys]
    ordered = sorted(keys.items(), key=lambda item: (item[1] != "all", names.index(item[0][0])))
    lines = []
    for (name, default, meaning), has in ordered:
        value = ", to be set" if default == "none" else f" = `{default}`"
        lines.append(f"- `{block}.{name}`{value}{'' if has == 'all' else f' ({has})'}: {meaning}")
    return lines


def page() -> str:
    """Return ``configuration.md``."""
    lines = [HEAD.rstrip(), "", *listed("refiner", placements()), "", "## `constraint`", ""]
    lines += ["More: [constraint.md](constraint.md). `mode=none` reads no other key.", ""]
    for one in by_name():
        mode, target = MODES[one]
        chosen = f"`mode={mode}`" + (f" with `target={target}`" if target != "rewrite" else "")
        doc = " ".join((one.__doc__ or "").split())
        lines.append(f"- {chosen}, η = {one.DEFAULT_ETA:g} by default: {doc}")
    names = {one: f"`{mode}`" + (" in place" if target == "in_place" else "") for one, (mode, target) in MODES.items()}
    keys = owned({one: names[one] for one in by_name()})
    modes = ", ".join(dict.fromkeys(f"`{mode}`" for mode, _ in CONSTRAINTS))
    own = "a class of your own as `module:Class` ([example](../examples/own_constraint))"
    named = {(name, default, meaning or f"{modes}, or {own}."): has for (name, default, meaning), has in keys.items()}
    lines += ["", "Keys:", "", *listed("constraint", named), ""]
    lines += [f"## {', '.join(f'`{block}`' for block in BLOCKS)}", ""]
    for block, fields in BLOCKS.items():
        lines += listed(block, dict.fromkeys(fields_of(fields), "all"))
    lines.append("")
    return "\n".join(lines)


def kind_of(meaning: Any) -> str:
    """Return what a metric of a step is."""
    return "sum" if isinstance(meaning, str) else type(meaning).__name__.lower()


def verdicts() -> dict[str, str]:
    """Return the doc string of each verdict, which Python itself does not keep."""
    body = ast.parse(inspect.getsource(Verdict)).body[0].body  # type: ignore[attr-defined]
    return {
        one.targets[0].id: " ".join(doc.value.value.split()).replace("``", "`")
        for one, doc in pairwise(body)
        if isinstance(one, ast.Assign) and isinstance(doc, ast.Expr)
    }


def metrics_page() -> str:
    """Return ``metrics.md``: all metrics under the first part of their names, then the ones that one constraint has."""
    said = {
        **{skipped_for(one): verdicts()[one.name].removeprefix("Skipped: ") for one in SKIPPED},
        **{failed_for(one): verdicts()[one.name].removeprefix("Failed: ") for one in FAILURES},
    }
    lines, group = [METRICS_HEAD.rstrip()], ""
    for name, meaning in MEANING.items():
        if (first := name.split("/")[0]) != group:
            group = first
            lines += ["", f"## `{group}`", ""]
        text = f"{meaning}: {said[name]}" if name in said else f"{getattr(meaning, 'meaning', meaning)}."
        lines.append(f"- `{name}` ({kind_of(meaning)}): {text}")
    own = {name: meaning for one in CONSTRAINTS.values() for name, meaning in one.MEANING.items()}
    lines += ["", "## Of one constraint", ""]
    lines += [f"- `{name}` ({kind_of(one)}): {getattr(one, 'meaning', one)}." for name, one in own.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    METRICS_PAGE.write_text(metrics_page(), encoding="utf-8")
    DEFAULTS.write_text(defaults(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
