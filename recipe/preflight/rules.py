"""The definition of a rule: a condition that a run has to meet before Ray starts.

A rule is a function of a :class:`PlannedRun`. It returns None, or one line for the user: what is wrong, and which key
to set. The line ends with the rule's id, which is the function's name with hyphens and is used by tests and docs. The
first broken rule is shown. Rules on the config alone are in ``recipe/online_refiner/config/rules``, rules that look at
verl in ``recipe/online_refiner/verl_glue/preflight``, all others in this package; each has a case in a test.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from omegaconf import DictConfig, OmegaConf

MANAGER_KEY = "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
"""The key of verl for the class that starts agent loop workers."""
SET_A_MODEL = "set a model folder or a hub id, such as Qwen/Qwen2.5-0.5B-Instruct"
"""The end of an error about a model that is not there."""


@dataclass(kw_only=True)
class PlannedRun:
    """A run before it starts; ``files`` and ``plan`` are set before rules that need them are checked."""

    config: DictConfig
    """The whole config, composed."""
    blocks: Any
    """This extension's part of the config (``RefinementConfig``, not named here to avoid a circular import)."""
    files: Any = field(init=False)
    """The run's models, data and machine (``Files`` of ``verl_glue/preflight/files.py``)."""
    plan: Any = field(init=False)
    """The sizes of the refiner (``Plan``)."""


Kind = Literal["paths", "numbers", "config", "start", "machine", "files", "sizes"]
"""The kind of a rule, by what it reads: paths in the config, its numbers, the whole config with its blocks, a start
with this config, the machine, files of models and data, or the refiner's sizes. Rules are checked in this order; rules
of the first four kinds import nothing that takes seconds."""
Rule = Callable[[PlannedRun], str | None]
RULES: dict[Kind, list[Rule]] = {kind: [] for kind in get_args(Kind)}


def rule(needs: Kind) -> Callable[[Rule], Rule]:
    """Register a function as a rule."""

    def added(one: Rule) -> Rule:
        RULES[needs].append(one)
        return one

    return added


def check(run: PlannedRun, needs: Kind) -> None:
    """Check a run by the rules of one kind.

    Raises:
        ValueError: If a rule is broken, with the first broken rule's line.
    """
    for one in RULES[needs]:
        try:
            sentence = one(run)
        except (ValueError, OSError) as error:  # of what it reads, which may be a folder of somebody else's
            raise ValueError(f"{error} [{rule_id(one)}]") from error
        if sentence:
            raise ValueError(f"{sentence} [{rule_id(one)}]")


def rule_id(one: Rule) -> str:
    """Return a rule's id: ``dedicated-refiner-has-gpus``."""
    return one.__name__.replace("_", "-")


def has_critic(config: DictConfig) -> bool:
    """Return whether a critic is trained, as ``need_critic`` of ``verl/trainer/ppo/utils.py`` does, without verl."""
    is_enabled = config.critic.enable
    return bool(config.algorithm.adv_estimator == "gae" if is_enabled is None else is_enabled)


def is_elsewhere(config: DictConfig) -> bool:
    """Return whether a dry run plans for another machine, which is so if it sets the memory of the GPUs there."""
    return bool(OmegaConf.select(config, "dry_run") and config.sizing.gpu_memory_gib)
