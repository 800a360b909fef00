"""Rules on names and settings that verl checks late or never; the rules ask verl's own registries.

There is no rule for settings that verl's workers refuse by themselves before they load a model.

Names that a module of the user registers (``actor_rollout_ref.model.external_lib``, ``VERL_USE_EXTERNAL_MODULES``) are
known by then, because ``Files`` and verl have imported the module.
"""

import dataclasses
import functools
import importlib
import pkgutil
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.resources import files
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import DictConfig, OmegaConf
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.tracking import Tracking
from verl.workers import engine
from verl.workers.rollout.replica import RolloutReplicaRegistry

from recipe.online_refiner.verl_glue.preflight.files import one_line
from recipe.preflight.rules import PlannedRun, has_critic, is_elsewhere, rule
from recipe.preflight.spelling import nearest, unknown

KL_KINDS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""The kinds that ``core_algos.kl_penalty_forward`` takes, for the text of a refusal: verl has no such list."""
TRACKERS = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")
"""The loggers that need a package of the same name."""
ROLLOUT = "actor_rollout_ref.rollout"
FROM_ZERO = (
    "seed",
    "data_loader_seed",
    "dataloader_num_workers",
    "num_warmup_batches",
    "num_to_backward_prefetch",
    "num_to_forward_prefetch",
)
"""The names of verl's counts that may also be 0."""
FRACTIONS = ("top_p", "horizon", "alpha", "lora_alpha")
"""The names of verl's numbers that may be fractions although their default is whole."""
BLOCKS_OF_VERL = (ROLLOUT, "actor_rollout_ref.actor", "algorithm")


def _engines() -> Collection[str]:
    """Return the training engines of verl, installed or not, since a dry run may plan for another machine."""
    installed = engine.EngineRegistry._engines["language_model"]
    return {*installed, *(module.name for module in pkgutil.iter_modules(engine.__path__) if module.ispkg)}


KNOWN: dict[str, Callable[[], Collection[str]]] = {
    "algorithm.adv_estimator": lambda: core_algos.ADV_ESTIMATOR_REGISTRY,
    "actor_rollout_ref.actor.policy_loss.loss_mode": lambda: core_algos.POLICY_LOSS_REGISTRY,
    "actor_rollout_ref.actor.strategy": _engines,
    "actor_rollout_ref.ref.strategy": _engines,
    "critic.strategy": _engines,
    "actor_rollout_ref.rollout.name": lambda: RolloutReplicaRegistry._registry,
    "actor_rollout_ref.rollout.mode": lambda: ("async",),  # asserted by verl's get_rollout_class
    "actor_rollout_ref.rollout.quantization": lambda: ("fp8", "torchao", "ascend"),  # of vLLMHttpServer
    "reward.reward_model.rollout.name": lambda: RolloutReplicaRegistry._registry,
    "trainer.v1.sampler.max_off_policy_strategy": lambda: ("drop", "wait"),  # asserted by verl's ReplayBuffer
}
NULLABLE = ("reward.reward_model.rollout.name", "actor_rollout_ref.rollout.quantization")


@rule("files")
def names_are_verls(run: PlannedRun) -> str | None:
    """Estimator, policy loss, engines, loggers and other names are those that verl, or a module of yours, has."""
    for key, known in KNOWN.items():
        name = OmegaConf.select(run.config, key, default="")  # which the critic's or reward model's block may lack
        if name == "" or (name is None and key in NULLABLE):
            continue
        if name not in known():
            return unknown(key, "null" if name is None else name, known())
    manager = run.config.reward.reward_manager
    if manager.source == "register" and manager.name not in REWARD_MANAGER:
        return unknown("reward.reward_manager.name", manager.name, REWARD_MANAGER)
    queue = run.config.transfer_queue.backend
    if queue.storage_backend not in queue:
        backends = [str(name) for name, block in queue.items() if OmegaConf.is_config(block)]
        return unknown("transfer_queue.backend.storage_backend", queue.storage_backend, backends)
    loggers = run.config.trainer.logger
    if loggers is None:
        return "trainer.logger=null: set a name such as console, a list of names, or [] for no logger"
    for name in [loggers] if isinstance(loggers, str) else loggers:
        if name not in (*Tracking.supported_backend, "tracking"):
            return unknown("trainer.logger", name, Tracking.supported_backend)
        if name in TRACKERS and not find_spec(name) and not is_elsewhere(run.config):
            return f"trainer.logger has {name}, which is not installed: pip install {name}, or leave it out"
    return None


@rule("files")
def switches_are_true_or_false(run: PlannedRun) -> str | None:
    """A switch of verl's is true or false; a word such as ``no`` or ``flase`` would count as true."""
    for key, default, value in _settings(run):
        if isinstance(default, bool) and isinstance(value, str):
            return f"{key}={value}: set true or false"
    return None


@rule("files")
def counts_are_counts(run: PlannedRun) -> str | None:
    """What verl counts from 1 by default is a whole number of at least 1: sizes, lengths, workers and sequences."""
    unused = _unused_parts(run.config)
    for key, default, value in _settings(run):
        name = key.rpartition(".")[2]
        if type(default) is not int or default < 1 or name in FRACTIONS or key.startswith(unused):
            continue
        least = int(name not in FROM_ZERO)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            return f"{key}={value}: set a whole number of at least {least}, such as {default}"
    return None


def _unused_parts(config: DictConfig) -> tuple[str, ...]:
    """Return the prefixes of keys that belong to parts of verl which the run does not use."""
    parts = {"critic.": has_critic(config), "reward.reward_model.": config.reward.reward_model.enable}
    parts["distillation."] = OmegaConf.select(config, "distillation.enabled")
    parts["global_profiler."] = OmegaConf.select(config, "global_profiler.steps")
    return tuple(part for part, is_used in parts.items() if not is_used)


@rule("files")
def blocks_are_verls(run: PlannedRun) -> str | None:
    """Each block of verl's has the keys and types that verl's own class of it takes, and keeps its rules."""
    for key in [*BLOCKS_OF_VERL, *(["critic"] if has_critic(run.config) else [])]:
        block = OmegaConf.select(run.config, key)
        try:
            omega_conf_to_dataclass(block)
        except Exception as error:  # an assertion of the class, or what Hydra makes of it
            return _wrong_with_block(key, block, error.__cause__ or error)
    return None


@rule("files")
def kl_is_verls(run: PlannedRun) -> str | None:
    """The kinds of KL that a run computes are kinds that verl knows."""
    algorithm, actor = run.config.algorithm, run.config.actor_rollout_ref.actor
    kinds = {"actor_rollout_ref.actor.kl_loss_type": actor.kl_loss_type} if actor.use_kl_loss else {}
    if algorithm.use_kl_in_reward:
        kinds["algorithm.kl_penalty"] = algorithm.kl_penalty
    for key, kind in kinds.items():
        if str(kind).removesuffix("+") not in KL_KINDS:
            return unknown(key, kind, KL_KINDS)
    return None


@rule("files")
def correction_has_its_log_probs(run: PlannedRun) -> str | None:
    """The rollout's log-probs are there where verl's correction needs them."""
    settings, rollout = run.config.algorithm.get("rollout_correction") or {}, run.config.actor_rollout_ref.rollout
    for name in ("bypass_mode", "rollout_is", "rollout_rs"):
        if settings.get(name) and not rollout.calculate_log_probs:
            return (
                f"algorithm.rollout_correction.{name}={settings[name]} needs the log-probs of the rollout; set "
                "actor_rollout_ref.rollout.calculate_log_probs=true"
            )
    return None


@rule("files")
def correction_acts(run: PlannedRun) -> str | None:
    """The settings of verl's correction reach the loss, and give weight 1 to tokens on which both policies agree."""
    settings = run.config.algorithm.get("rollout_correction") or {}
    policy_loss = run.config.actor_rollout_ref.actor.policy_loss
    if policy_loss.loss_mode == "bypass_mode":
        if policy_loss.get("rollout_correction") is None:
            return (
                "actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode reads a block of its own: set "
                "+actor_rollout_ref.actor.policy_loss.rollout_correction={rollout_is:token,loss_type:ppo_clip}"
            )
        return _wrong_with_correction("actor_rollout_ref.actor.policy_loss", policy_loss.rollout_correction)
    if not settings.get("bypass_mode"):
        return _wrong_with_correction("algorithm", settings)
    for name, plain in {"rollout_is": None, "rollout_rs": None, "loss_type": "ppo_clip"}.items():
        if (value := settings.get(name)) not in (None, plain):
            return (
                f"algorithm.rollout_correction.{name}={value}: verl does not read it with bypass_mode=true; leave it "
                "out, or set actor_rollout_ref.actor.policy_loss.loss_mode=bypass_mode and its own rollout_correction"
            )
    return None


def _wrong_with_correction(block: str, settings: Mapping[str, Any]) -> str | None:
    """Return what is wrong with a block ``rollout_correction``, tried on a token on which both policies agree."""
    one = torch.ones(1, 1)
    tried = DataProto.from_single_dict({"old_log_probs": -one, "rollout_log_probs": -one, "response_mask": one})
    try:
        found = compute_rollout_correction_and_add_to_batch(tried, settings)[0].batch
    except (ValueError, TypeError) as error:
        return f"{block}.rollout_correction: {one_line(error)}"
    if settings.get("rollout_is") and (weight := found["rollout_is_weights"].item()) != 1:
        return (
            f"{block}.rollout_correction.rollout_is_threshold={settings['rollout_is_threshold']}: a token on which the "
            f"policies agree has weight {weight:g}, not 1; write two bounds as LOWER_UPPER, such as 0.5_5.0"
        )
    return None


@rule("files")
def advantages_can_be_computed(run: PlannedRun) -> str | None:
    """Verl's estimator takes groups of ``rollout.n`` responses, and its settings reach it."""
    algorithm, num_responses = run.config.algorithm, run.config.actor_rollout_ref.rollout.n
    name = algorithm.adv_estimator
    if algorithm.get("use_pf_ppo") and name != "gae":
        said = f"algorithm.use_pf_ppo=true does nothing with algorithm.adv_estimator={name}"
        return f"{said}: set algorithm.adv_estimator=gae, or algorithm.use_pf_ppo=false"
    if name == "gae" and not has_critic(run.config):
        return "algorithm.adv_estimator=gae needs the values of a critic: leave critic.enable out, or set it to true"
    is_own = getattr(core_algos.ADV_ESTIMATOR_REGISTRY[name], "__module__", "") != core_algos.__name__
    if is_own:  # what it reads is not known here
        return None
    try:
        found = _advantages(run.config, by_std=bool(algorithm.norm_adv_by_std_in_grpo))
    except (ValueError, AssertionError, TypeError) as error:  # the last of what the trainer does not give it
        return f"algorithm.adv_estimator={name} with actor_rollout_ref.rollout.n={num_responses}: {one_line(error)}"
    if not found.any():
        return (
            f"algorithm.adv_estimator={name} with actor_rollout_ref.rollout.n={num_responses}: each advantage is 0, "
            "and nothing is learned; raise n, or set another estimator"
        )
    if algorithm.norm_adv_by_std_in_grpo or num_responses == 1:
        return None
    if torch.equal(found, _advantages(run.config, by_std=True)):
        return (
            f"algorithm.norm_adv_by_std_in_grpo=false: verl does not pass it to algorithm.adv_estimator={name}; set "
            "algorithm.adv_estimator=grpo, or leave algorithm.norm_adv_by_std_in_grpo out"
        )
    return None


def _settings(run: PlannedRun) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys of verl's config with defaults and values; the rollout's keys are yielded for refiners as well."""
    rollouts = {f"{use.key}.rollout": OmegaConf.create(use.first.rollout) for use in run.blocks.refiner.models}
    for key, default in _defaults(run.config.actor_rollout_ref.actor.strategy == "megatron"):
        yield key, default, OmegaConf.select(run.config, key)
        for block, rollout in rollouts.items() if key.startswith(f"{ROLLOUT}.") else ():
            name = key.removeprefix(f"{ROLLOUT}.")
            yield f"{block}.{name}", default, OmegaConf.select(rollout, name)


@functools.cache
def _defaults(is_megatron: bool) -> list[tuple[str, Any]]:
    """Return the keys of verl's config for Megatron or for its other engines, with their defaults."""
    file = files("verl.trainer.config") / f"_generated_ppo_{'megatron_' if is_megatron else ''}trainer.yaml"
    return list(_leaves(yaml.load(file.read_text(), Loader=yaml.CSafeLoader)))


def _leaves(block: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in block.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _wrong_with_block(key: str, block: DictConfig, error: BaseException) -> str:
    """Return the line about a block that verl's own class refuses."""
    if found := re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error)):
        known = getattr(importlib.import_module("verl.workers.config"), found[1], None) or AlgoConfig
        names = [field.name for field in dataclasses.fields(known) if field.name != found[2]]
        return f"{key}.{found[2]}: verl has no such key in this block{nearest(found[2], names)}"
    if isinstance(error, AssertionError) and not str(error):  # its source says what holds
        return f"{key}: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return f"{key}: {one_line(error)}"


def _advantages(config: DictConfig, *, by_std: bool) -> torch.Tensor:
    """Return the advantages of two groups whose rewards all differ, of two tokens each, as verl's trainer asks."""
    algorithm, num_responses = config.algorithm, config.actor_rollout_ref.rollout.n
    rewards = torch.zeros(2 * num_responses, 2)
    rewards[:, -1] = torch.arange(2 * num_responses) ** 2
    mask = torch.ones_like(rewards)
    columns: dict[str, Any] = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "values": mask,
        "old_log_probs": -mask,
        "prompts": mask,
        "attention_mask": torch.ones(len(mask), 4, dtype=torch.long),
        "uid": np.repeat(np.array(["one", "two"], dtype=object), num_responses),
    }
    if config.actor_rollout_ref.actor.get("calculate_sum_pi_squared"):
        columns["sum_pi_squared"] = mask / 2
    for key in algorithm.get("gdpo_reward_keys") or []:
        columns[key] = rewards[:, -1].numpy().astype(object)
    done = compute_advantage(
        DataProto.from_single_dict(columns),
        adv_estimator=algorithm.adv_estimator,
        gamma=algorithm.gamma,
        lam=algorithm.lam,
        num_repeat=num_responses,
        norm_adv_by_std_in_grpo=by_std,
        config=OmegaConf.merge(algorithm, {"norm_adv_by_std_in_grpo": by_std, "use_pf_ppo": False}),
    )
    return done.batch["advantages"]
