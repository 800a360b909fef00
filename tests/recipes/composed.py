"""verl's own example scripts: whether each one's arguments compose with this extension and pass its rules.

``arguments.json`` holds, by the name of a script under ``examples/`` of verl (main branch of 2026-08-22), the arguments
that the script gives to ``verl.trainer.main_ppo``.

    python tests/recipes/composed.py          # print the count and each refusal, for the installed verl
    python tests/recipes/composed.py --write  # write docs/verl_recipes.md
"""

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2]))

from hydra import compose, initialize_config_module
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.verl_glue.preflight.images import (
    images_are_refined_where_they_are_trained_on,
    models_read_images,
    prompts_have_texts_and_images_alone,
)
from recipe.preflight.rules import PlannedRun, rule_id

ARGUMENTS: dict[str, list[str]] = json.loads(Path(__file__).with_name("arguments.json").read_text())
PAGE = Path(__file__).parents[2] / "docs" / "verl_recipes.md"
GONE = ("actor_rollout_ref.actor.megatron.grad_offload", "actor_rollout_ref.actor.model_engine")
"""Keys of verl's main branch that verl 0.9.1 does not have. They are left out."""
ENGINES = ("megatron", "veomni", "torchtitan")
"""Engines that a script chooses by the name of verl's config (``--config-name=ppo_megatron_trainer``)."""
MEDIA = {"geo3k": "images", "openr1mm": "images", "tinyllava-video": "videos"}
"""Data sets whose prompts have images or videos, as their names in a script's ``data.train_files``, and the column."""
IMAGE_RULES = (prompts_have_texts_and_images_alone, images_are_refined_where_they_are_trained_on)
UNREAD = ("MiniCPM-o",)
"""Models whose processor verl 0.9.1 does not load, as their names in ``actor_rollout_ref.model.path``."""
BY_URL = ["refiner.placement=external", "refiner.url=http://host:8000/v1"]
"""What a run adds whose policy rolls out on SGLang."""
NOT_COMPOSED = "verl 0.9.1 does not compose these arguments"
ADVICE = """
A dry run with models and data checks more, by verl's own code, and refuses some of these scripts as well:
verl 0.9.1 gives `algorithm.adv_estimator=remax` no baselines, does not have SAPO's `actor.tau_pos`, and does
not read `algorithm.rollout_correction.rollout_is` with `bypass_mode=true`.

**To add a refiner to a script of yours**: replace `python -m verl.trainer.main_ppo` by `online-refiner train`,
and a `--config-name=ppo_megatron_trainer.yaml` by `model_engine=megatron`. Set `refiner.skip_reward_at_least`
to your highest reward, and turn static KL off, as in [README](../README.md#add-it-to-your-run). Then add
`dry_run=true sizing.gpu_memory_gib=80` ([On a cluster](cluster.md#size-before-the-queue)), which needs no GPU.
"""
"""What the page says about a dry run of a script, and about scripts of one's own."""


def overrides_of(arguments: list[str]) -> list[str]:
    """Return the arguments as overrides of this extension's config: an engine's config is its group's choice."""
    named = " ".join(one for one in arguments if one.startswith("--config-name"))
    given = [one for one in arguments if "=" in one and not one.startswith("--")]
    kept = [one for one in given if one.lstrip("+").partition("=")[0] not in GONE]
    engines = [f"model_engine={name}" for name in ENGINES if name in named]
    has_engine = any(one.lstrip("+").startswith("model_engine=") for one in kept)
    return kept if has_engine else [*engines, *kept]


def refusal_of(arguments: list[str]) -> str | None:
    """Return why this extension does not take a script's arguments, in one line; None if it takes them."""
    overrides = overrides_of(arguments)
    if any(one.endswith("rollout.name=sglang") for one in overrides):  # whose engine hosts no refiner
        overrides += BY_URL
    try:
        config = compose("online_refiner", overrides=overrides)
    except (HydraException, OmegaConfBaseException):
        return NOT_COMPOSED
    try:
        blocks = load(config)
    except ValueError as error:
        return " ".join(str(error).split())
    run = PlannedRun(config=config, blocks=blocks)
    run.files = SimpleNamespace(media=[kind for name, kind in MEDIA.items() if name in str(config.data.train_files)])
    if run.files.media and any(name in config.actor_rollout_ref.model.path for name in UNREAD):
        return f"verl cannot load the model's processor [{rule_id(models_read_images)}]"
    wrong = ((rule(run), rule) for rule in IMAGE_RULES)
    return next((f"{said} [{rule_id(rule)}]" for said, rule in wrong if said), None)


def refusals() -> dict[str, str | None]:
    """Return the refusal of each script; None where the script is accepted."""
    with warnings.catch_warnings(), initialize_config_module("recipe.online_refiner.config", version_base=None):
        warnings.simplefilter("ignore")
        return {name: refusal_of(arguments) for name, arguments in ARGUMENTS.items()}


def page_of(found: dict[str, str | None]) -> str:
    """Return the page of the docs: the count, and each script that is not accepted with its reason."""
    accepted = sum(reason is None for reason in found.values())
    composed = sum(reason != NOT_COMPOSED for reason in found.values())
    return "\n".join(
        [
            "# verl's example scripts",
            "",
            f"**The config of {accepted} of {composed} example scripts of verl accepts a refiner.**",
            "The arguments of a script count as accepted if they compose with `online-refiner train`, pass the rules",
            "on the config, and train on images with FSDP only. No model is loaded, and nothing is trained.",
            "Where the policy rolls out on SGLang, the refiner is a server by URL (`refiner.placement=external`).",
            "",
            f"The {len(found)} scripts are those under `examples/` of verl's main branch of 2026-08-22 that call",
            f"`verl.trainer.main_ppo`; {len(found) - composed} do not compose with verl 0.9.1.",
            f"Two keys that 0.9.1 does not have are left out: `{GONE[0]}` and",
            f"`{GONE[1]}`. `python tests/recipes/composed.py --write` writes this page.",
            *ADVICE.splitlines(),
            "Scripts with a refiner for eight of verl's recipes are in",
            "[examples/verl_recipes](../examples/verl_recipes).",
            "",
            "| reason | scripts |",
            "|---|---|",
            *(f"| {reason} | {number} |" for reason, number in _counted(found)),
            "",
            "| script that is not accepted | reason |",
            "|---|---|",
            *(f"| {name} | {_shown(reason)} |" for name, reason in sorted(found.items()) if reason is not None),
            "",
        ]
    )


def _counted(found: dict[str, str | None]) -> Iterator[tuple[str, int]]:
    """Yield each rule with the number of scripts that it refuses, most first."""
    rules = Counter(_rule(reason) for reason in found.values() if reason is not None)
    yield from sorted(rules.items(), key=lambda one: (-one[1], one[0]))


def _rule(reason: str) -> str:
    named = re.search(r"\[([a-z0-9-]+)\]$", reason)
    return f"`{named[1]}`" if named else reason


def _shown(reason: str) -> str:
    return reason.replace("|", "\\|")


if __name__ == "__main__":
    found = refusals()
    if "--write" in sys.argv:
        PAGE.write_text(page_of(found))
    for name, reason in sorted(found.items()):
        if reason is not None:
            print(f"{name}: {reason}")
    composes = sum(reason != NOT_COMPOSED for reason in found.values())
    print(f"{sum(reason is None for reason in found.values())} of {composes} accepted ({len(found)} scripts)")
