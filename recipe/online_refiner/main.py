"""Train with an online refiner.

    python -m recipe.online_refiner.main [experiment=NAME] [platform=cpu] [any verl override]

Compose the config, check it, run verl. ``dry_run=true`` stops after the checks and prints the plan.
"""

import functools
import gc
import os
import sys
from collections.abc import Callable, Collection
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement

from recipe.online_refiner import __version__
from recipe.online_refiner.config.checks import load
from recipe.online_refiner.config.fields import RefinementConfig
from recipe.online_refiner.verl_glue.contract import HOOKS, caution_of_version, faults_of_contract, version_of
from recipe.preflight import needed  # noqa: F401  # for its rule
from recipe.preflight.attention import choose_attention
from recipe.preflight.noise import quieten
from recipe.preflight.rules import PlannedRun, check
from recipe.preflight.spelling import in_one_line, unknown
from recipe.preload.noise import drop_expected
from recipe.preload.stop import ends_at_signals, ends_ray_at_signals
from recipe.report.console import CONSOLES, begin
from recipe.runs.files import RunDir
from recipe.runs.lock import lock_folders
from recipe.runs.starts import start_of
from recipe.runs.stop import cause_of_end, last_words

FULL_ERROR = os.environ.get("HYDRA_FULL_ERROR")
"""The user's own value of the variable, before Hydra sets another one."""
OWN_KEYS: dict[str, Collection[Any]] = {
    "console": CONSOLES,
    "dry_run": (True, False, "reward"),
    "preload": (True, False),
}
"""The possible values of this command's own keys."""
GROUPS = ("experiment", "platform", "refinement", "control", "twin", "model_engine")
"""The Hydra groups from which a config is composed."""
WRITTEN_FOR = ("verl==0.9.1", "TransferQueue>=0.1.11")
"""Packages whose private parts this extension overrides and reads, as ``pip install`` takes them."""


@hydra.main(config_path="config", config_name="online_refiner", version_base=None)
def main(config: DictConfig) -> None:
    """Run one training job; a user's mistake ends it with one line and exit code 2, before Ray starts."""
    _set_full_error(FULL_ERROR)
    says = functools.partial(last_words, config)
    try:
        blocks = load(config)  # before anything is imported
        if any(name not in config for name in ("console", "preload", "dry_run")):
            raise ValueError(
                "a config of your own begins with `defaults: [online_refiner, _self_]`, or has a script of its own, as "
                "examples/own_recipe has"
            )
        for key, values in OWN_KEYS.items():
            if config[key] not in values:
                raise ValueError(unknown(key, config[key], [str(value).lower() for value in values]))
        check(PlannedRun(config=config, blocks=None), "start")
        with ends_at_signals(says):
            _enter(config)
            begin(config, "checking config, data and models")
            plan = _prepare(config, blocks)
            locks = [] if config.dry_run else lock_folders(config)
    except (ValueError, AssertionError, HydraException) as error:  # verl's own checks assert, or raise in Hydra's hands
        print("error:", "; ".join(str(error).splitlines()), file=sys.stderr)
        raise SystemExit(2) from None
    if config.dry_run:
        _show(plan)
        return
    _train_or_say_why(config, says)
    del locks  # held until here


def _train_or_say_why(config: DictConfig, says: Callable[[str], str]) -> None:
    """Train; an error with a cause that a user can remove ends the run with one line and exit code 1."""
    gc.enable()
    with ends_at_signals(says):  # here: it imports Ray and the trainer, which takes seconds
        from recipe.online_refiner.verl_glue.task_runner import train

    RunDir(config.run_dir).write_start(start_of(sys.argv[1:], __version__))
    try:
        with ends_ray_at_signals(says), CONSOLES[config.console](config):
            train(config)
    except Exception as error:
        if (line := cause_of_end(error, config)) is None:
            raise
        print("error:", line, file=sys.stderr)
        raise SystemExit(1) from None


def _show(text: str) -> None:
    """Print a text to a pipe whose reader may stop early (``| head -1``)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it ends


def command() -> None:
    """Run ``main``; mistakes that Hydra has no good words for are answered here.

    They are another verl (or none), whose config Hydra would read first; a value that
    begins with ``~``, which a shell left as it was; and a key or a preset that does not exist.
    """
    try:
        check_packages()
    except ValueError as error:
        print("error:", error, file=sys.stderr)
        raise SystemExit(2) from None
    for argument in sys.argv[1:]:
        name, _, value = argument.lstrip("+~").partition("=")
        if value.startswith("~"):
            print(f"error: {name}: no shell reads the ~ of {value} after =; write $HOME", file=sys.stderr)
            raise SystemExit(2)
    drop_expected()
    _set_full_error("1")  # Hydra raises what it would print in seven lines
    gc.disable()  # to look for garbage among the objects of imports takes a fifth of a dry run
    try:
        with ends_at_signals():
            main()
    except HydraException as error:
        print("error:", in_one_line(error, _config_of_groups), file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        gc.enable()


def check_packages() -> None:
    """Check, without importing them, that the packages have the names that this extension overrides and reads.

    Another version of verl is accepted if it has all names; ``prepare`` warns of it.

    Raises:
        ValueError: One line: what is missing, and what to install.
    """
    for line in WRITTEN_FOR:
        wanted = Requirement(line)
        found = version_of(wanted.name)
        if found is None:
            raise ValueError(f"{wanted.name} is not installed; run: pip install '{line}'")
        if wanted.name != "verl" and not wanted.specifier.contains(found, prereleases=True):
            raise ValueError(
                f"{wanted.name} {found} is not what this extension is written for, which overrides private parts of "
                f"it; run: pip install '{line}'"
            )
    if faults := faults_of_contract():
        (hook, fault), number = faults[0], f" ({len(faults)} of {len(HOOKS)} names differ)"
        raise ValueError(
            f"verl {version_of('verl')}: {fault}, which {hook.needed_by} needs{number if len(faults) > 1 else ''}; "
            f"run: pip install {' '.join(map(repr, WRITTEN_FOR))}"
        )


def _set_full_error(value: str | None) -> None:
    """Tell Hydra whether to raise its errors."""
    if value is None:
        os.environ.pop("HYDRA_FULL_ERROR", None)
    else:
        os.environ["HYDRA_FULL_ERROR"] = value


def _config_of_groups() -> dict[str, Any]:
    """Return the config of this command's presets and platform, without its other overrides."""
    groups = [argument for argument in sys.argv[1:] if argument.partition("=")[0] in GROUPS]
    with hydra.initialize_config_module("recipe.online_refiner.config", version_base=None):
        config: Any = OmegaConf.to_container(hydra.compose("online_refiner", overrides=groups))
    return dict(config)


def _enter(config: DictConfig) -> None:
    """Restart this command with the variables of its platform, and with workers that are forks of one process.

    On the CPU the stages of a step take turns, so each process may use its share of all cores; Ray's default is one
    thread.
    """
    from recipe import preload
    from recipe.cpu_platform import ENVIRONMENT, check_environment, check_versions
    from recipe.preload.launch import enter

    on_cpu = config.trainer.device == "cpu"
    environment, launcher = preload.ENVIRONMENT, "recipe.preload.launch"
    if on_cpu:
        check_versions()
        num_threads = max(1, len(os.sched_getaffinity(0)) // max(1, config.trainer.n_gpus_per_node))
        environment, launcher = {**ENVIRONMENT, "OMP_NUM_THREADS": str(num_threads)}, "recipe.cpu_platform.launch"
    joins_cluster = OmegaConf.select(config, "ray_kwargs.ray_init.address") or "RAY_ADDRESS" in os.environ
    preloads = config.preload and not joins_cluster
    if config.dry_run:  # nothing is computed, and verl is not imported yet
        os.environ.update({**environment, **os.environ})
    elif on_cpu or preloads:
        if preloads and not preload.is_tried:
            begin(config, "importing torch, verl and vLLM")
        enter(environment, launcher=launcher if preloads else None)
    if on_cpu:
        check_environment()


def prepare(config: DictConfig) -> str:
    """Check everything that can be checked before Ray starts, make ``run_dir`` absolute and return the plan as text.

    A script of your own calls this function before it trains; the command checks in the same way.

    Raises:
        ValueError: If something is wrong; the message names the key and what to set, or what to install.
    """
    check_packages()
    return _prepare(config, load(config))


def _prepare(config: DictConfig, blocks: RefinementConfig) -> str:
    """Do what ``prepare`` does with a config that has been read and checked by itself."""
    # The trainer may run on another node, in a folder of Ray's.
    config.run_dir, config.records.path = _absolute(config.run_dir), _absolute(config.records.path)
    if config.trainer.resume_from_path:
        config.trainer.resume_from_path = _absolute(config.trainer.resume_from_path)
    for role in (config.actor_rollout_ref.actor, config.actor_rollout_ref.ref):
        if (size := role.get("ulysses_sequence_parallel_size") or 1) > 1 and "fsdp_config" in role:
            role.fsdp_config.ulysses_sequence_parallel_size = size  # verl's older key, which it copies later itself
    run = PlannedRun(config=config, blocks=blocks)
    check(run, "start")
    quieten(config)
    # These modules import torch and verl, which takes seconds, so the config is checked first; most have rules.
    from recipe.online_refiner.verl_glue.model_configs import plan_run
    from recipe.online_refiner.verl_glue.preflight import (  # noqa: F401
        checkpoints,
        images,
        inputs,
        models,
        names,
        trials,
    )
    from recipe.online_refiner.verl_glue.preflight.cautions import cautions
    from recipe.online_refiner.verl_glue.preflight.devices import name_device
    from recipe.online_refiner.verl_glue.preflight.duration import duration
    from recipe.online_refiner.verl_glue.preflight.files import Files
    from recipe.online_refiner.verl_glue.preflight.validation import let_verl_check
    from recipe.preflight import machine  # noqa: F401

    name_device(config)  # rules for NVIDIA's GPUs hold for no other device
    if line := choose_attention(config):
        print(line, file=sys.stderr)
    run.files = Files(config)
    check(run, "machine")
    check(run, "files")
    let_verl_check(config)
    run.plan = plan_run(config, blocks, tokenizer=run.files.tokenizer)
    check(run, "sizes")
    time_of_step, long = duration(run) or ("", None)
    for line in filter(None, (caution_of_version(), *cautions(run), long)):
        print("warning:", line, file=sys.stderr)
    plan = run.plan.describe(config, blocks, run.files.num_prompts)
    if time_of_step:
        begin(config, time_of_step)
        plan += f"\n{'time':<14} {time_of_step}"
    return f"{plan}\n\n{trials.shown_prompt(run)}" if config.dry_run and blocks.refines else plan


def _absolute(path: str) -> str:
    """Return the absolute form of a path; a URL is not changed."""
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


if __name__ == "__main__":
    command()
