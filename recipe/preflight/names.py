"""Rules on names and settings that verl looks up minutes after its start: its own registries and functions are asked.

Names that a module of the user's registers (``actor_rollout_ref.model.external_lib``, ``VERL_USE_EXTERNAL_MODULES``)
are known by then, as :class:`~recipe.preflight.files.Files` and verl have imported it.
"""

import contextlib
import dataclasses
import importlib
import inspect
import io
import pkgutil
import re
import traceback
from collections.abc import Callable, Collection, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
import yaml
from omegaconf import DictConfig, OmegaConf
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.registry import REWARD_MANAGER
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.fs import copy_to_local
from verl.utils.import_utils import import_external_libs, load_extern_object
from verl.utils.torch_dtypes import PrecisionType
from verl.utils.tracking import Tracking
from verl.workers import engine
from verl.workers.config.optimizer import build_optimizer
from verl.workers.rollout.replica import RolloutReplicaRegistry

from recipe.online_refiner.config.checks import ABSENT
from recipe.online_refiner.config.rules import Run, rule
from recipe.online_refiner.config.spelling import nearest, unknown
from recipe.online_refiner.constraints.base import CRITIC_ESTIMATORS
from recipe.preflight.attention import STRATEGIES, chosen_attention, trained_models
from recipe.preflight.files import one_line
from refiner_worker.engines import ENGINE

KL_KINDS = ("kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3")
"""What ``core_algos.kl_penalty_forward`` takes, for the words of a refusal: verl has no list of them."""
TRACKERS = ("wandb", "mlflow", "swanlab", "clearml", "trackio", "tensorboard")
"""Loggers that are packages of the same name."""
FUSED = ("torch", "triton")
"""Fused kernels that ``apply_monkey_patch`` of verl puts into a model; with another name it puts none, and says so."""
USUAL: dict[str, tuple[Any, ...]] = {
    "dtype": ("auto", "bfloat16", "float16", "float32"),
    "load_format": ("auto", "dummy", "safetensors"),
    "worker_extension_cls": ("recipe.cpu_platform.vllm_extension.CpuWorkerExtension",),
    "distributed_executor_backend": ("uni", "mp", "ray"),
    "block_size": (32, 64, 128),
}
"""Settings of an engine for which vLLM, whose import takes seconds, need not be asked."""
BLOCKS_OF_VERL = ("actor_rollout_ref.rollout", "actor_rollout_ref.actor", "algorithm")


def _engines() -> Collection[str]:
    """Return the training engines of verl, installed or not: a dry run may plan for another machine."""
    installed = engine.EngineRegistry._engines["language_model"]
    return {*installed, *(module.name for module in pkgutil.iter_modules(engine.__path__) if module.ispkg)}


def _ways_to_send_weights() -> Collection[str]:
    """Return verl's checkpoint engines, installed or not."""
    package: Any = find_spec("verl.checkpoint_engine")  # its import takes a second, most of it vLLM's
    folders = package.submodule_search_locations
    sources = [file.read_text() for folder in folders for file in Path(folder).glob("*.py")]
    return {name for source in sources for name in re.findall(r"Registry\.register\(\"(\w+)\"\)", source)}


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
def names_are_verls(run: Run) -> str | None:
    """Estimator, policy loss, engines, loggers and other names are those that verl, or a module of yours, has."""
    for key, known in KNOWN.items():
        name = OmegaConf.select(run.config, key, default=ABSENT)
        if name is ABSENT or (name is None and key in NULLABLE):
            continue
        if name not in known():
            return unknown(key, "null" if name is None else name, known())
    manager = run.config.reward.reward_manager
    if manager.source == "register" and manager.name not in REWARD_MANAGER:
        return unknown("reward.reward_manager.name", manager.name, REWARD_MANAGER)
    sync = run.config.actor_rollout_ref.rollout.checkpoint_engine
    if sync.backend not in (ways := _ways_to_send_weights()):
        from verl.checkpoint_engine import CheckpointEngineRegistry

        try:
            import_external_libs(sync.custom_backend_module or None)
            CheckpointEngineRegistry.get(sync.backend)
        except (ImportError, ValueError):
            return unknown("actor_rollout_ref.rollout.checkpoint_engine.backend", sync.backend, ways)
    queue = run.config.transfer_queue.backend
    if queue.storage_backend not in queue:
        backends = [str(name) for name, block in queue.items() if OmegaConf.is_config(block)]
        return unknown("transfer_queue.backend.storage_backend", queue.storage_backend, backends)
    loggers = run.config.trainer.logger
    if loggers is None:
        return "trainer.logger=null: set a name, or a list of names; [] for none"
    for name in [loggers] if isinstance(loggers, str) else loggers:
        if name not in (*Tracking.supported_backend, "tracking"):
            return unknown("trainer.logger", name, Tracking.supported_backend)
        if name in TRACKERS and not find_spec(name) and run.files.is_here:
            return f"trainer.logger has {name}, which is not installed: pip install {name}, or leave it out"
    return None


@rule("files")
def switches_are_true_or_false(run: Run) -> str | None:
    """A switch of verl's is true or false; a word such as ``no`` or ``flase`` would count as true."""
    engine_name = "megatron_" if run.config.actor_rollout_ref.actor.strategy == "megatron" else ""
    file = files("verl.trainer.config") / f"_generated_ppo_{engine_name}trainer.yaml"
    for key in _switches(yaml.load(file.read_text(), Loader=yaml.CSafeLoader)):
        own = key.replace("actor_rollout_ref.rollout", "refiner.rollout")
        for name in (key, own):
            if isinstance(value := OmegaConf.select(run.config, name), str):
                return f"{name}={value}: set true or false"
    return None


@rule("files")
def types_of_numbers_are_torchs(run: Run) -> str | None:
    """The trained models have types of numbers that verl's engine knows (``PrecisionType``)."""
    keys = ["actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config"]
    for key in [*keys, *(["critic.fsdp"] if _has_critic(run.config) else [])]:
        settings = OmegaConf.select(run.config, key) or {}
        names = {"model_dtype": settings.get("model_dtype")}
        names.update({f"mixed_precision.{name}": one for name, one in (settings.get("mixed_precision") or {}).items()})
        for name, value in names.items():
            try:
                PrecisionType.to_dtype("fp32" if value is None else value)
            except RuntimeError as error:
                return f"{key}.{name}={value}: {error}; set fp32, bf16 or fp16"
    return None


@rule("files")
def models_have_their_kernels(run: Run) -> str | None:
    """Attention and fused kernels of trained models are known, and Liger is installed where it is used."""
    for key, model in trained_models(run.config).items():
        attention, fused = chosen_attention(model), model.get("use_fused_kernels") and model.fused_kernel_options
        known = {"eager", *ALL_ATTENTION_FUNCTIONS}
        if attention is not None and attention not in known and "/" not in attention:  # with it: of the hub
            return unknown(f"{key}.override_config.attn_implementation", attention, known)
        if fused and fused.impl_backend not in FUSED:
            return unknown(f"{key}.fused_kernel_options.impl_backend", fused.impl_backend, FUSED)
        if model.get("use_liger") and not find_spec("liger_kernel") and run.files.is_here:
            return (
                f"{key}.use_liger=true, but liger-kernel is not installed: pip install liger-kernel, or set it to false"
            )
    return None


@rule("files")
def engine_takes_its_settings(run: Run) -> str | None:
    """The parser of vLLM takes ``dtype`` and ``engine_kwargs.vllm``, and it has the load format."""
    rollouts = {"actor_rollout_ref.rollout": run.config.actor_rollout_ref.rollout}
    if run.blocks.hosts_refiner and run.blocks.refiner.has_replicas:
        rollouts["refiner.rollout"] = OmegaConf.create(run.blocks.refiner.rollout)
    for key, rollout in rollouts.items():
        settings = {name: rollout.get(name) for name in ("dtype", "load_format") if rollout.get(name) is not None}
        own: Any = OmegaConf.to_container(rollout, resolve=True).get("engine_kwargs") or {}  # type: ignore[union-attr]
        settings.update(own.get(ENGINE) or {})
        is_usual = all(value in USUAL.get(name, ()) for name, value in settings.items())
        if is_usual or run.config.actor_rollout_ref.rollout.name != ENGINE or not find_spec(ENGINE):
            continue
        if wrong := _wrong_with_engine(settings):
            return f"{key}: {wrong}"
    return None


@rule("files")
def blocks_are_verls(run: Run) -> str | None:
    """Each block of verl's has the keys and types that verl's own class of it takes, and keeps its rules."""
    for key in [*BLOCKS_OF_VERL, *(["critic"] if _has_critic(run.config) else [])]:
        block = OmegaConf.select(run.config, key)
        try:
            omega_conf_to_dataclass(block)
        except Exception as error:  # an assertion of the class, or what Hydra makes of it
            return _wrong_with_block(key, block, error.__cause__ or error)
    return None


@rule("files")
def kl_is_verls(run: Run) -> str | None:
    """The kinds of KL that a run computes are those of verl's."""
    algorithm, actor = run.config.algorithm, run.config.actor_rollout_ref.actor
    kinds = {}
    if actor.use_kl_loss:
        kinds["actor_rollout_ref.actor.kl_loss_type"] = actor.kl_loss_type
    if algorithm.use_kl_in_reward:
        kinds["algorithm.kl_penalty"] = algorithm.kl_penalty
        try:
            core_algos.get_kl_controller(algorithm.kl_ctrl)
        except (NotImplementedError, AssertionError) as error:
            return f"algorithm.kl_ctrl.type={algorithm.kl_ctrl.type}: {str(error) or 'set fixed or adaptive'}"
    for key, kind in kinds.items():
        try:
            core_algos.kl_penalty(torch.zeros(1), torch.zeros(1), kind)
        except (NotImplementedError, AttributeError):
            return unknown(key, kind, KL_KINDS)
    return None


@rule("files")
def classes_can_be_imported(run: Run) -> str | None:
    """Optimizer, sampler and other classes that a config names by module are there."""
    config = run.config
    for key in ("actor_rollout_ref.actor.optim", *(["critic.optim"] if _has_critic(config) else [])):
        optim = OmegaConf.select(config, key)
        if "optimizer_impl" not in optim:  # Megatron has optimizers of its own
            continue
        try:
            module = importlib.import_module(optim.optimizer_impl)
        except ImportError as error:
            return f"{key}.optimizer_impl={optim.optimizer_impl}: {one_line(error)}"
        if not hasattr(module, optim.optimizer):
            known = [name for name in vars(module) if isinstance(vars(module)[name], type)]
            return (
                f"{key}.optimizer={optim.optimizer}: {optim.optimizer_impl} has none{nearest(optim.optimizer, known)}"
            )
    sampler: Any = OmegaConf.select(config, "trainer.v1.sampler.custom_sampler") or {}
    if sampler.get("path") and sampler.get("name"):
        try:
            load_extern_object(sampler.path, sampler.name)
        except Exception as error:  # a user's module may raise anything
            return f"trainer.v1.sampler.custom_sampler: {one_line(error)}"
    return None


@rule("files")
def optimizer_can_be_built(run: Run) -> str | None:
    """The optimizer and its schedule take their settings, as verl's engine builds them."""
    for key in ("actor_rollout_ref.actor.optim", *(["critic.optim"] if _has_critic(run.config) else [])):
        optim = OmegaConf.select(run.config, key)
        if "optimizer_impl" not in optim:
            continue
        try:
            build_optimizer([torch.nn.Parameter(torch.zeros(1))], omega_conf_to_dataclass(optim))
        except Exception as error:  # each optimizer has errors of its own
            return f"{key}: {optim.optimizer} does not take its settings: {one_line(error)}"
        if optim.lr_scheduler_type == "cosine" and not 0 <= (optim.min_lr_ratio or 0) <= 1:  # asserted without a word
            return f"{key}.min_lr_ratio={optim.min_lr_ratio}: set a number from 0 to 1, or null"
    return None


@rule("files")
def correction_can_be_computed(run: Run) -> str | None:
    """Verl's correction for the rollout's log-probs takes ``algorithm.rollout_correction``."""
    settings, rollout = run.config.algorithm.get("rollout_correction") or {}, run.config.actor_rollout_ref.rollout
    for name in ("bypass_mode", "rollout_is", "rollout_rs"):
        if settings.get(name) and not rollout.calculate_log_probs:
            return (
                f"algorithm.rollout_correction.{name}={settings[name]} needs the log-probs of the rollout; set "
                "actor_rollout_ref.rollout.calculate_log_probs=true"
            )
    names = inspect.signature(compute_rollout_correction_and_rejection_mask).parameters
    given = {name: value for name, value in settings.items() if name in names}
    numbers = torch.zeros(2, 2)
    try:
        compute_rollout_correction_and_rejection_mask(numbers, numbers, torch.ones(2, 2), **given)
    except Exception as error:  # its own words say which setting
        return f"algorithm.rollout_correction: {one_line(error)}"
    return None


@rule("files")
def advantages_can_be_computed(run: Run) -> str | None:
    """Verl's estimator takes groups of ``rollout.n`` responses, and its settings reach it."""
    algorithm, num_responses = run.config.algorithm, run.config.actor_rollout_ref.rollout.n
    name = algorithm.adv_estimator
    if algorithm.get("use_pf_ppo") and name not in CRITIC_ESTIMATORS:
        return f"algorithm.use_pf_ppo=true does nothing with algorithm.adv_estimator={name}: set gae, or false"
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
            f"algorithm.norm_adv_by_std_in_grpo=false: verl does not give it to algorithm.adv_estimator={name}; set "
            "adv_estimator=grpo, or leave it out"
        )
    return None


@rule("files")
def loss_can_be_computed(run: Run) -> str | None:
    """Verl's policy loss takes its settings, such as ``clip_ratio_c`` and ``policy_loss.dro_beta``."""
    name = run.config.actor_rollout_ref.actor.policy_loss.loss_mode
    function: Any = core_algos.get_policy_loss_fn(name)
    if getattr(function, "__module__", "") != core_algos.__name__ or name == "bypass_mode":
        return None  # one of the user's; bypass_mode gets settings that the trainer adds
    actor = omega_conf_to_dataclass(run.config.actor_rollout_ref.actor)
    numbers = {"old_log_prob": torch.zeros(2, 2), "log_prob": torch.zeros(2, 2), "advantages": torch.ones(2, 2)}
    mask, mode = torch.ones(2, 2), run.config.actor_rollout_ref.actor.loss_agg_mode
    try:
        function(**numbers, response_mask=mask, loss_agg_mode=mode, config=actor, rollout_is_weights=None)
    except Exception as error:  # an assertion, or an arithmetic of something that is null
        return f"actor_rollout_ref.actor.policy_loss.loss_mode={name} cannot be computed: {one_line(error)}"
    return None


@rule("files")
def adapter_finds_its_modules(run: Run) -> str | None:
    """PEFT finds the modules of a LoRA in the policy, whose weights are not read for that."""
    model, strategy = run.config.actor_rollout_ref.model, run.config.actor_rollout_ref.actor.strategy
    if model.lora_rank <= 0 or model.lora_adapter_path is not None or strategy not in STRATEGIES:
        return None
    from peft import LoraConfig, get_peft_model  # here: it takes seconds

    policy = _policy_without_weights(run)
    if policy is None:
        return None
    modules: dict[str, Any] = {
        name: OmegaConf.to_container(model[name]) if OmegaConf.is_config(model.get(name)) else model.get(name)
        for name in ("target_modules", "exclude_modules")
    }
    try:
        get_peft_model(policy, LoraConfig(task_type="CAUSAL_LM", r=model.lora_rank, **modules))
    except ValueError as error:
        said = f"actor_rollout_ref.model.target_modules={modules['target_modules']}: {one_line(error)}"
        return f"{said} A list is written without quotes around its brackets: [q_proj,v_proj]"
    return None


@rule("files")
def wrapped_layers_are_the_policys(run: Run) -> str | None:
    """FSDP wraps classes of modules that the policy has (``get_fsdp_wrap_policy`` in ``verl/utils/fsdp_utils.py``)."""
    key = "actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap"
    wanted = OmegaConf.select(run.config.actor_rollout_ref, key)
    if not wanted or run.config.actor_rollout_ref.actor.strategy not in STRATEGIES:
        return None
    policy = _policy_without_weights(run)
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    known = {type(module).__name__ for module in policy.modules()} if policy is not None else set(names)
    if known.intersection(names):
        return None
    return f"actor_rollout_ref.{key}={wanted} is in no module of the policy; leave it out{nearest(names[0], known)}"


def _policy_without_weights(run: Run) -> Any:
    """Return the policy on the device ``meta``; None for a model of another kind, of which verl knows more."""
    model = run.config.actor_rollout_ref.model
    trusted = {"trust_remote_code": model.trust_remote_code}
    try:
        with torch.device("meta"):
            settings = AutoConfig.from_pretrained(copy_to_local(model.path), **trusted)
            return AutoModelForCausalLM.from_config(settings, **trusted)
    except Exception:  # whatever a model's own code raises
        return None


def _switches(block: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield the keys that are true or false by default."""
    for name, value in block.items():
        if isinstance(value, dict):
            yield from _switches(value, f"{before}{name}.")
        elif isinstance(value, bool):
            yield f"{before}{name}"


def _wrong_with_engine(settings: dict[str, Any]) -> str | None:
    """Return what vLLM says of settings that it does not take."""
    from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config  # here: vLLM takes seconds
    from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.model_executor.model_loader import LoadFormats
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    form = settings.get("load_format", "auto")
    if form not in get_args(LoadFormats):
        return unknown("load_format", form, get_args(LoadFormats))
    with contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            make_arg_parser(FlexibleArgumentParser()).parse_args(build_cli_args_from_config(settings))
        except SystemExit:
            return said.getvalue().strip().splitlines()[-1].partition("error: ")[2]
    return None


def _wrong_with_block(key: str, block: DictConfig, error: BaseException) -> str:
    """Return the line on a block that verl's class of it does not take."""
    if found := re.search(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error)):
        known = getattr(importlib.import_module("verl.workers.config"), found[1], None) or AlgoConfig
        names = [field.name for field in dataclasses.fields(known) if field.name != found[2]]
        return f"{key}.{found[2]}: verl has no such key in this block{nearest(found[2], names)}"
    if isinstance(error, AssertionError) and not str(error):  # its source says what holds
        return f"{key}: {traceback.extract_tb(error.__traceback__)[-1].line}"
    return f"{key}: {one_line(error)}"


def _has_critic(config: DictConfig) -> bool:
    return config.algorithm.adv_estimator in CRITIC_ESTIMATORS


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
