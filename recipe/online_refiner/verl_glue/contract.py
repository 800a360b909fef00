"""The names of verl that this extension needs without importing them: hooks, patched and private names, attributes.

A method of ours that verl no longer calls, because verl renamed it, fails silently: the run trains as if there were no
constraint. So each start looks for these names in the installed verl, whatever its version (``faults_of_contract``).
The look-up reads verl's sources, because importing them would take seconds. It needs neither torch nor verl.

A name that our modules import is not here: without it the import fails.
"""

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from packaging.version import Version


@dataclass(frozen=True, slots=True)
class Hook:
    """A name that must exist in an installed package."""

    path: str
    """Module and name: ``verl.trainer.ppo.v1.trainer_base:PPOTrainer.step``."""
    needed_by: str
    """Our module that overrides, replaces, calls or reads the name."""
    parameters: tuple[str, ...] | None = None
    """The parameters in order, without ``self``, if we override it or pass arguments; None: not checked."""
    since: str | None = None
    """The version of the package that has the name first; earlier ones work without it. None: all need it."""

    @property
    def package(self) -> str:
        """The package that has it."""
        return self.module.partition(".")[0]

    @property
    def module(self) -> str:
        """The module that defines it."""
        return self.path.partition(":")[0]

    @property
    def name(self) -> str:
        """Its name there: ``PPOTrainer.step``."""
        return self.path.partition(":")[2]


OF_TRAINER = "recipe.online_refiner.verl_glue.trainer"
OF_PATCHES = "recipe.online_refiner.verl_glue.patches"
OF_STREAMING = "recipe.online_refiner.verl_glue.streaming"
OF_WORKER = "recipe.online_refiner.verl_glue.actor_worker"
OF_ENGINE = "recipe.online_refiner.verl_glue.actor_engine"
OF_HOSTING = "recipe.online_refiner.verl_glue.hosting.start"
OF_ROWS = "recipe.online_refiner.verl_glue.rows"
OF_WATCH = "recipe.online_refiner.verl_glue.watch"
OF_GROUP = "recipe.online_refiner.verl_glue.hosting.group"
OF_SERVERS = "recipe.online_refiner.verl_glue.hosting.servers"
OF_SHARED = "recipe.online_refiner.verl_glue.hosting.shared"

TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
SEPARATE = "verl.trainer.ppo.v1.trainer_separate_async"
BUFFER = "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer"
AGENT_LOOP = "verl.experimental.agent_loop.agent_loop"
AGENT_LOOP_TQ = "verl.trainer.ppo.v1.agent_loop_tq"
REWARD_LOOP = "verl.experimental.reward_loop.reward_loop"
REWARD_MODEL = "verl.experimental.reward_loop.reward_model:RewardModelManager"
TEACHERS = "verl.experimental.teacher_loop.teacher_model"
ENGINE_WORKERS = "verl.workers.engine_workers"
FSDP = "verl.workers.engine.fsdp.transformer_impl"
DETACH_WORKER = "verl.experimental.separation.engine_workers:DetachActorWorker"
POOLS = "verl.single_controller.ray.base:ResourcePoolManager"
WORKER_GROUP = "verl.single_controller.base.worker_group:WorkerGroup"
SERVERS = "verl.workers.rollout.llm_server:LLMServerManager"
REPLICA = "verl.workers.rollout.replica"
VLLM_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server"
QUEUE = "transfer_queue.interface"
ROWS = "transfer_queue.metadata:KVBatchMeta"

HOOKS = [
    # ---- the trainer: overridden
    Hook(f"{TRAINER}._init_resource_pool_mgr", OF_TRAINER, ()),
    Hook(f"{TRAINER}._build_replay_buffer", OF_TRAINER, ()),
    Hook(f"{TRAINER}._setup", OF_TRAINER, ()),
    Hook(f"{TRAINER}.fit", OF_TRAINER, ("agent_loop_manager",)),
    Hook(f"{TRAINER}.on_step_begin", OF_TRAINER, ()),
    Hook(f"{TRAINER}.step", OF_TRAINER, ("metrics", "timing_raw")),
    Hook(f"{TRAINER}._submit_batch_to_rollout", OF_TRAINER, ("batch",)),
    Hook(f"{TRAINER}.prepare_step", OF_TRAINER, (), since="0.9.1"),  # 0.9.0 filters no groups before a step's samples
    Hook(f"{TRAINER}.on_sample_begin", OF_TRAINER, ()),
    Hook(f"{TRAINER}._compute_reward_colocate", OF_TRAINER, ("batch", "metrics")),
    Hook(f"{TRAINER}._balance_batch", OF_TRAINER, ("batch", "metrics", "logging_prefix", "keep_minibatch")),
    Hook(f"{TRAINER}._compute_old_log_prob", OF_TRAINER, ("batch", "metrics")),
    Hook(f"{SEPARATE}:PPOTrainerSeparateAsync._compute_old_log_prob", OF_TRAINER, ("batch", "metrics")),
    Hook(f"{TRAINER}._compute_advantage", OF_TRAINER, ("batch", "metrics")),
    Hook(f"{TRAINER}._update_actor", OF_TRAINER, ("batch", "metrics")),
    Hook(f"{TRAINER}._load_checkpoint", OF_TRAINER, ()),
    Hook(f"{TRAINER}._save_checkpoint", OF_TRAINER, ()),
    Hook(f"{TRAINER}._validate", OF_TRAINER, ()),
    Hook(f"{TRAINER}._compute_metrics", OF_TRAINER, ("batch", "metrics", "timing_raw", "global_steps", "epoch")),
    # ---- the trainer: called and read
    Hook(f"{TRAINER}._compute_ref_log_prob", OF_TRAINER, ("batch", "metrics")),
    Hook(f"{TRAINER}.get_reward_handles", OF_TRAINER, ()),
    Hook(f"{TRAINER}.role_worker_mapping", OF_TRAINER),
    Hook(f"{TRAINER}.resource_pool_manager", OF_TRAINER),
    Hook(f"{TRAINER}.tokenizer", OF_TRAINER),
    Hook(f"{TRAINER}.reward_loop_manager", OF_TRAINER),
    Hook(f"{TRAINER}.llm_server_manager", OF_TRAINER),
    Hook(f"{SEPARATE}:PPOTrainerSeparateAsync.standalone_server_manager", OF_TRAINER),
    Hook(f"{TRAINER}.actor_rollout_wg", OF_TRAINER),
    Hook(f"{TRAINER}.critic_wg", OF_WATCH),
    Hook(f"{TRAINER}.ref_policy_wg", OF_WATCH),
    Hook(f"{TRAINER}.use_critic", OF_WATCH),
    Hook(f"{TRAINER}.use_reference_policy", OF_WATCH),
    Hook(f"{TRAINER}.teacher_model_manager", OF_WATCH),
    Hook(f"{TEACHERS}:MultiTeacherModelManager.teacher_model_managers", OF_WATCH),
    Hook(f"{TEACHERS}:TeacherModelManager.rollout_replicas", OF_WATCH),
    Hook(f"{TRAINER}.global_steps", OF_TRAINER),
    Hook(f"{TRAINER}.total_training_steps", OF_TRAINER),
    Hook(f"{TRAINER}.local_trigger_step", OF_TRAINER),
    Hook(f"{TRAINER}.parameter_sync_step", OF_TRAINER),
    Hook(f"{TRAINER}.timing_raw", OF_TRAINER),
    Hook(f"{TRAINER}.logger", OF_TRAINER),
    Hook("verl.utils.tracking:Tracking.logger", OF_TRAINER),
    Hook("verl.trainer.main_ppo:TaskRunnerV1.run", "recipe.online_refiner.verl_glue.task_runner", ("config",)),
    # ---- where rollouts wait until a step samples them
    Hook(f"{BUFFER}.poll_interval", OF_PATCHES),
    Hook(f"{BUFFER}._wait_for_next_poll", OF_PATCHES, ("partition_id", "last_debug_time")),
    Hook(f"{BUFFER}._dapo_filtered_keys", OF_PATCHES, ("partition_id",)),
    Hook(f"{BUFFER}._dapo_classification_cache", OF_PATCHES),
    Hook(f"{BUFFER}.partitions", OF_PATCHES),
    Hook(f"{BUFFER}._evict_terminal_groups", OF_PATCHES, ("global_steps", "partition_id", "eviction_reasons")),
    Hook(f"{SEPARATE}:logger", OF_PATCHES),
    # ---- agent loops
    Hook(
        f"{AGENT_LOOP_TQ}:AgentLoopWorkerTQ._run_prompt",
        OF_STREAMING,
        ("prompt", "sampling_params", "trajectory", "trace"),
    ),
    Hook(
        f"{AGENT_LOOP}:AgentLoopWorker._run_agent_loop",
        OF_STREAMING,
        ("sampling_params", "trajectory", "agent_name", "trace", "kwargs"),
    ),
    Hook(f"{AGENT_LOOP_TQ}:AgentLoopWorkerTQ._agent_loop_postprocess", OF_STREAMING, ("output", "validate", "kwargs")),
    Hook(f"{AGENT_LOOP}:AgentLoopWorker.rollout_config", OF_STREAMING),
    Hook(f"{AGENT_LOOP}:AgentLoopWorker.tokenizer", OF_STREAMING),
    Hook(f"{AGENT_LOOP}:AgentLoopWorker.reward_loop_worker_handles", OF_STREAMING),
    Hook(f"{AGENT_LOOP_TQ}:AgentLoopManagerTQ.agent_loop_workers_class", OF_STREAMING),
    Hook(f"{AGENT_LOOP}:AgentLoopManager.agent_loop_workers_class", OF_STREAMING),
    Hook(f"{AGENT_LOOP}:AgentLoopManager.agent_loop_workers", OF_STREAMING),
    Hook(f"{AGENT_LOOP}:AgentLoopManager.config", OF_STREAMING),
    Hook(f"{AGENT_LOOP}:_agent_loop_registry", "recipe.online_refiner.verl_glue.preflight.trials"),
    Hook(
        "verl.experimental.agent_loop.tool_parser:ToolParser._registry",
        "recipe.online_refiner.verl_glue.preflight.trials",
    ),
    Hook("verl.utils.dataset.rl_dataset:RLHFDataset.tool_schemas", "recipe.online_refiner.verl_glue.preflight.trials"),
    # ---- names that a config may have
    Hook("verl.trainer.ppo.core_algos:ADV_ESTIMATOR_REGISTRY", "recipe.online_refiner.verl_glue.preflight.names"),
    Hook("verl.trainer.ppo.core_algos:POLICY_LOSS_REGISTRY", "recipe.online_refiner.verl_glue.preflight.names"),
    Hook("verl.utils.tracking:Tracking.supported_backend", "recipe.online_refiner.verl_glue.preflight.names"),
    Hook("verl.workers.engine.base:EngineRegistry._engines", "recipe.online_refiner.verl_glue.preflight.names"),
    Hook(
        "verl.workers.rollout.replica:RolloutReplicaRegistry._registry",
        "recipe.online_refiner.verl_glue.preflight.names",
    ),
    # ---- rewards
    Hook(f"{REWARD_LOOP}:RewardLoopWorker", OF_PATCHES),
    Hook(f"{REWARD_LOOP}:RewardLoopWorker.compute_score_disrm", OF_PATCHES, ("data",)),
    Hook(f"{REWARD_LOOP}:RewardLoopWorker.compute_score", OF_PATCHES, ("data",)),
    Hook(f"{REWARD_LOOP}:RewardLoopWorker._init_reward_fn", OF_PATCHES, ()),
    Hook(f"{REWARD_LOOP}:RewardLoopManager.reward_loop_workers", OF_TRAINER),
    Hook(f"{REWARD_LOOP}:RewardLoopManager.reward_model_manager", OF_TRAINER),
    Hook(f"{REWARD_MODEL}.wake_up", OF_TRAINER, ()),
    Hook(f"{REWARD_MODEL}.sleep", OF_TRAINER, ()),
    Hook(f"{REWARD_MODEL}.rollout_replicas", OF_WATCH),
    # ---- the policy's workers
    Hook(f"{DETACH_WORKER}.save_model_to_cpu", OF_TRAINER, ("n",)),
    Hook(f"{DETACH_WORKER}.restore_model_from_cpu", OF_TRAINER, ("n",)),
    Hook(f"{DETACH_WORKER}.clear_cpu_model", OF_TRAINER, ("n",)),
    Hook(f"{ENGINE_WORKERS}:ActorRolloutRefWorker.actor_worker_cls", OF_WORKER),
    Hook(f"{ENGINE_WORKERS}:ActorRolloutRefWorker.init_model", OF_WORKER, ()),
    Hook(f"{ENGINE_WORKERS}:ActorRolloutRefWorker.actor", OF_WORKER),
    Hook(f"{ENGINE_WORKERS}:ActorRolloutRefWorker.loss_fn", OF_WORKER),
    Hook(f"{ENGINE_WORKERS}:TrainingWorker.set_loss_fn", OF_WORKER, ("loss_fn",)),
    Hook(f"{ENGINE_WORKERS}:TrainingWorker.train_batch", OF_WORKER, ("data",)),
    Hook(f"{ENGINE_WORKERS}:TrainingWorker.infer_batch", OF_WORKER, ("data",)),
    Hook(f"{ENGINE_WORKERS}:TrainingWorker.engine", OF_WORKER),
    Hook(f"{ENGINE_WORKERS}:TrainingWorker.engine_config", OF_WORKER),
    Hook("verl.workers.engine.base:BaseEngine.get_data_parallel_group", OF_WORKER, ()),
    Hook(f"{FSDP}:FSDPEngineWithLMHead.forward_step", OF_ENGINE, ("micro_batch", "loss_function", "forward_only")),
    Hook(f"{FSDP}:FSDPEngineWithLMHead.prepare_model_inputs", OF_ENGINE, ("micro_batch",)),
    Hook(
        f"{FSDP}:FSDPEngineWithLMHead.prepare_model_outputs",
        OF_ENGINE,
        ("output", "output_args", "micro_batch", "logits_processor_func"),
    ),
    Hook(f"{FSDP}:FSDPEngine.module", OF_ENGINE),
    Hook(f"{FSDP}:FSDPEngine.use_ulysses_sp", OF_ENGINE),
    Hook(f"{FSDP}:FSDPEngine.pad_to_length", OF_ENGINE),
    Hook(f"{WORKER_GROUP}._dispatch_info", "recipe.online_refiner.verl_glue.rows"),
    Hook("verl.single_controller.ray.base:RayWorkerGroup.workers", OF_WATCH),
    Hook(
        "verl.utils.torch_functional:logprobs_from_logits_v2",
        "recipe.online_refiner.verl_glue.without_flash_attn",
        ("logits", "labels"),
    ),
    Hook(
        "verl.utils.model:load_valuehead_model",
        "recipe.cpu_platform.patches",  # for GPUs without flash-attn as well
        ("local_path", "torch_dtype", "model_config", "trust_remote_code"),
    ),
    # ---- models that see
    Hook("verl.models.transformers.qwen2_vl:_get_input_embeds", OF_PATCHES),
    Hook("verl.models.transformers.glm4v:_get_input_embeds", OF_PATCHES),
    Hook("verl.models.transformers.qwen2_vl:qwen2_vl_attn_forward", OF_PATCHES),
    Hook("verl.models.transformers.glm4v:glm4v_attn_forward", OF_PATCHES),
    Hook("verl.utils.tensordict_utils:maybe_fix_3d_position_ids", OF_PATCHES, ("data",)),
    # ---- GPUs
    Hook(f"{POOLS}.create_resource_pool", OF_HOSTING, ()),
    Hook(f"{POOLS}.resource_pool_dict", OF_HOSTING),
    Hook(f"{POOLS}.resource_pool_spec", OF_HOSTING),
    Hook(f"{POOLS}.mapping", OF_HOSTING),
    Hook(
        "verl.single_controller.ray.base:RayResourcePool.get_placement_groups",
        OF_HOSTING,
        ("strategy", "name", "device_name"),
    ),
    Hook("verl.single_controller.base.worker_group:ResourcePool.world_size", OF_GROUP),
    # ---- servers of the rollout and of the refiner
    Hook(f"{SERVERS}.get_replicas", OF_TRAINER, ()),
    Hook(f"{SERVERS}.server_handles", OF_TRAINER),
    Hook(f"{SERVERS}.server_addresses", OF_TRAINER),
    Hook(f"{REPLICA}:RolloutReplica.init_colocated", OF_GROUP, ("resource_pool",)),
    Hook(f"{REPLICA}:RolloutReplica.wake_up", OF_GROUP, ()),
    Hook(f"{REPLICA}:RolloutReplica.sleep", OF_GROUP, ()),
    Hook(f"{REPLICA}:RolloutReplica.servers", OF_GROUP),
    Hook(f"{REPLICA}:RolloutReplica.workers", OF_GROUP),
    Hook(f"{REPLICA}:RolloutReplica.server_address", OF_GROUP),
    Hook(f"{REPLICA}:RolloutReplica.server_handle", OF_GROUP),
    Hook(f"{REPLICA}:RolloutReplicaRegistry.register", OF_SHARED, ("name", "loader")),
    Hook(f"{REPLICA}:TokenOutput.token_ids", "refiner_worker.client"),
    Hook(f"{REPLICA}:TokenOutput.extra_fields", "refiner_worker.client"),
    Hook(
        f"{VLLM_SERVER}:vLLMHttpServer.generate",
        OF_SERVERS,
        (
            "prompt_ids",
            "sampling_params",
            "request_id",
            "image_data",
            "video_data",
            "audio_data",
            "mm_processor_kwargs",
            "priority",
            "kv_transfer_params",
        ),
    ),
    Hook(
        "verl.workers.rollout.vllm_rollout.utils:extract_prompt_logprobs",
        OF_SERVERS,
        ("output", "num_prompt_logprobs", "result_dict"),
    ),
    Hook(f"{VLLM_SERVER}:vLLMHttpServer.lora_as_adapter", OF_SHARED),
    Hook(f"{VLLM_SERVER}:vLLMHttpServer.engine", "refiner_worker.engines"),
    Hook(f"{VLLM_SERVER}:vLLMReplica.server_class", OF_SHARED),
    # ---- the TransferQueue
    Hook(f"{QUEUE}:_TQ_CONTROLLER", OF_WATCH),
    Hook(f"{QUEUE}:_TQ_STORAGE", OF_WATCH),
    Hook(f"{QUEUE}:kv_batch_get", OF_ROWS, ("keys", "partition_id", "select_fields")),
    Hook(f"{QUEUE}:kv_batch_put", OF_ROWS, ("keys", "partition_id", "fields", "tags", "data_parser")),
    Hook(f"{QUEUE}:kv_list", OF_ROWS, ("partition_id",)),
    Hook(f"{QUEUE}:get_client", OF_ROWS, ()),
    Hook("transfer_queue.client:TransferQueueClient.kv_retrieve_meta", OF_ROWS, ("keys", "partition_id", "create")),
    Hook("transfer_queue.metadata:BatchMeta.field_names", OF_ROWS),
    Hook(f"{QUEUE}:kv_clear", OF_PATCHES, ("keys", "partition_id")),
    Hook(f"{ROWS}.keys", OF_ROWS),
    Hook(f"{ROWS}.tags", OF_ROWS),
    Hook(f"{ROWS}.partition_id", OF_ROWS),
    Hook(f"{ROWS}.fields", OF_ROWS),
    Hook(f"{ROWS}.extra_info", OF_TRAINER),
]
"""The names, all of which exist in the version that this extension was written for."""


TRIED = ("0.9.1",)
"""Versions of verl with which the tests of this extension ran."""


def version_of(name: str) -> str | None:
    """Return a package's version, or None if it is not installed.

    For verl it is the version of the folder that Python imports, as pip may know another one.
    """
    if name == "verl" and (spec := find_spec(name)) and spec.origin:
        return (Path(spec.origin).parent / "version" / "version").read_text().strip()
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def file_of(hook: Hook) -> Path:
    """Return the source of the module that a hook is in."""
    package, *parts = hook.module.split(".")
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    return Path(str(spec.origin)).parent.joinpath(*parts).with_suffix(".py")


def fault_of(hook: Hook) -> str | None:
    """Return what the installed package lacks for one hook, in words; None if the hook is there."""
    file = file_of(hook)
    if not file.is_file():
        return f"there is no module {hook.module}"
    names = names_of(file)
    if hook.name not in names and hook.since and Version(str(version_of(hook.package))) < Version(hook.since):
        return None
    if hook.name not in names:
        return f"{hook.module} has no {hook.name}"
    if hook.parameters is not None and names[hook.name] != hook.parameters:
        now = ", ".join(names[hook.name] or ())
        return f"{hook.path} takes ({now}) instead of ({', '.join(hook.parameters)})"
    return None


def caution_of_version() -> str | None:
    """Return a warning if this extension was never tried with the installed verl, or None if it was."""
    if (found := version_of("verl")) in TRIED:
        return None
    return (
        f"verl {found} was not tried with this extension, whose tests ran with {', '.join(TRIED)}; it has all "
        "names that this extension overrides or reads, so the run goes on"
    )


@functools.cache
def faults_of_contract() -> list[tuple[Hook, str]]:
    """Return the hooks that the installed packages lack, each with what is wrong in words."""
    found = ((hook, fault_of(hook)) for hook in HOOKS)
    return [(hook, fault) for hook, fault in found if fault is not None]


@functools.cache
def names_of(file: Path) -> dict[str, tuple[str, ...] | None]:
    """Return what a file defines (``names_in``)."""
    return names_in(file.read_text())


def names_in(source: str) -> dict[str, tuple[str, ...] | None]:
    """Return what a module defines, with the parameters of what is a function.

    Example: ``class A: def f(self, x): self.y = x`` gives ``{"A": None, "A.f": ("x",), "A.y": None}``.
    """
    found: dict[str, tuple[str, ...] | None] = {}
    for node in ast.parse(source).body:
        found.update(_defined(node))
        if isinstance(node, ast.ClassDef):
            found.update({f"{node.name}.{name}": None for name in _set_on_self(node)})
            for part in node.body:
                of_class = {name: parameters and parameters[1:] for name, parameters in _defined(part)}
                found.update({f"{node.name}.{name}": parameters for name, parameters in of_class.items()})
    return found


def _defined(node: ast.stmt) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield the names that a statement defines, with all parameters of a function."""
    if isinstance(node, ast.ClassDef):
        yield node.name, None
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        of = node.args
        parts = [*of.posonlyargs, *of.args, of.vararg, *of.kwonlyargs, of.kwarg]
        yield node.name, tuple(part.arg for part in parts if part is not None)
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        yield from ((target.id, None) for target in targets if isinstance(target, ast.Name))


def _set_on_self(node: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that a class sets on ``self``."""
    for part in ast.walk(node):
        match part:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name
