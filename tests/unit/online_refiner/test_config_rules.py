"""What a config alone tells: types and bounds of keys, what they stand for, and rules, of which each has a case."""

import functools
import pickle
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from composed_main import CONFIG, composed
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from recipe.online_refiner.config.checks import load
from recipe.online_refiner.config.megatron import layout
from recipe.online_refiner.config.rules.sizes import micro_batches_are_filled
from recipe.online_refiner.config.rules.verl_keys import LARGEST_RANK
from recipe.online_refiner.main import command
from recipe.online_refiner.method.modes import CONSTRAINTS, read_constraint
from recipe.preflight.rules import RULES, PlannedRun, rule_id
from refiner_worker.config import External


def error_of(*overrides: str) -> str:
    """Return the line that says what is wrong."""
    with pytest.raises(ValueError) as error:
        load(composed(*overrides))
    assert "\n" not in str(error.value)
    return str(error.value)


# ---- keys


def test_defaults() -> None:
    loaded = load(composed())
    assert loaded.refines and loaded.hosts_refiner and not loaded.streams
    assert loaded.refiner.model_path == "model"
    assert loaded.refiner.response_length == 512  # data.max_response_length
    assert (loaded.constraint.mode, loaded.constraint.sft_normaliser) == ("sft", "batch")
    assert loaded.num_kl_rollouts == 64
    by_null = load(composed("refiner.response_length=null", "refiner.model_path=null")).refiner
    assert by_null == loaded.refiner


MODES = [
    ("none", "rewrite", 0.0, None),
    ("penalty", "rewrite", 1e-3, "advantages"),
    ("sft", "rewrite", 0.03, None),
    ("lagrangian", "rewrite", 0.01, "advantages"),
    ("penalty", "in_place", 0.03, "advantages"),
    ("sft", "in_place", 0.03, "advantages"),
]


@pytest.mark.parametrize(("mode", "target", "eta", "place"), MODES)
def test_what_a_mode_stands_for(mode: str, target: str, eta: float, place: str | None) -> None:
    found = load(composed(f"constraint.mode={mode}", f"constraint.target={target}")).constraint
    assert type(found) is CONSTRAINTS[mode, target]
    assert (found.first_eta, found.refines) == (eta, mode != "none")
    assert place == (None if found.penalty is None else found.penalty.place("grpo"))
    assert (found.imitation is not None) is (mode in ("sft", "lagrangian"))


def test_dead_groups_are_rescued_by_a_weight() -> None:
    rescue = {"mode": "sft", "rescue_dead_groups": True}
    assert read_constraint(rescue).rescues and not read_constraint({**rescue, "eta": 0.0}).rescues
    assert (imitation := read_constraint({**rescue, "eta": 0.0}).imitation) and imitation.settings(0.0) == {}


# What a mode or a placement does not have is refused with the keys that it has.
MISPLACED = [
    ((), "constraint.credit=in_reward"),
    ((), "constraint.in_place_template=answer"),
    (("constraint.credit=in_reward", "constraint.mode=penalty"), "constraint.mode=sft"),
    (("constraint.sft_normaliser=accepted",), "constraint.mode=penalty"),
    (("constraint.alignment=diff",), "constraint.target=in_place"),
    (("constraint.mode=penalty",), "constraint.rescue_dead_groups=true"),
    ((), "refiner.n_gpus_per_node=2"),
    ((), "refiner.nnodes=2"),
    ((), "refiner.url=http://host/v1"),
    ((), "refiner.api_key_env=KEY"),
    ((), "refiner.extra_body={top_k: 1}"),
    ((), "refiner.streaming=true"),
    (("refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8"), "refiner.streaming=false"),
    (("refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8"), "refiner.num_replicas=1"),
    (("refiner.placement=external", "refiner.url=http://host/v1"), "refiner.num_replicas=1"),
    (("refiner.placement=external", "refiner.url=http://host/v1"), "refiner.rollout={gpu_memory_utilization: 0.4}"),
]


@pytest.mark.parametrize(("settings", "mistake"), MISPLACED)
def test_a_key_of_another_mode_or_placement(settings: tuple[str, ...], mistake: str) -> None:
    load(composed(*settings))
    assert re.search(r"is not a key of \S+=\w+( with target=\w+)?; its keys are: \w+, ", error_of(*settings, mistake))


@pytest.mark.parametrize(
    "override",
    [
        "constraint.eta=-1",
        "constraint.eta=much",
        "constraint.eta=inf",
        "constraint.delta=0",
        "refiner.num_replicas=0",
        "refiner.samples=0",
        "refiner.response_length=0",
        "refiner.temperature=-1",
        "refiner.temperature=2.5",
        "refiner.request_timeout_s=0",
        "refiner.reject_leaks=maybe",
        "refiner.skip_reward_at_least=nan",
        "measure.cross_entropy_all_every=-1",
        "sizing.gpu_memory_gib=0",
    ],
)
def test_a_value_that_a_key_does_not_take(override: str) -> None:
    special = {"inf": ".inf", "nan": ".nan"}  # YAML's names
    key, _, value = override.partition("=")
    assert error_of(f"{key}={special.get(value, value)}").startswith(f"{override}: Input should be ")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+refiner.modle_path=x", "refiner.modle_path is not a key of refiner.placement=colocated; its keys are: "),
        (
            "constraint.mode=punish",
            f"constraint.mode=punish: set one of {', '.join(dict.fromkeys(mode for mode, _ in CONSTRAINTS))}",
        ),
        (
            "constraint.target=in_place constraint.mode=lagrangian",
            "constraint.target=in_place is not one of mode lagrangian; set one of rewrite",
        ),
        ("refiner.placement=moon", "refiner.placement=moon: set one of colocated, dedicated, shared, external"),
        ("refiner.placement=[shared]", "refiner.placement=['shared']: set one of "),
        ("refiner.placement=dedicated", "refiner.placement=dedicated: set refiner.n_gpus_per_node"),
        ("refiner.placement=external", "refiner.placement=external: set refiner.url"),
        ("refiner.placement=external refiner.url=5", "refiner.url=5: Input should be a valid list"),
        ("refiner.context=[hints]", "refiner.context.0=hints: "),
        (
            "refiner.samples=4",
            "refiner.samples=4: at refiner.temperature=0 all are the same; set refiner.temperature=1",
        ),
        ("records.path=s4://bucket/run", "records.path=s4://bucket/run: "),
        ("records.path=https://host/run", "records.path=https://host/run: nothing can be written by HTTP"),
        ("refiner.max_refinements_per_group=x", "refiner.max_refinements_per_group=x: "),
        ("refiner.only_unsolved=true", "refiner.only_unsolved=true: nothing tells which prompts are solved; set "),
        ("+constraint.by_source.a.eta=-1", "constraint.by_source.a.eta=-1: Input should be greater"),
        ("+constraint.by_source.a.mode=sft", "constraint.mode=sft: set constraint.by_source.a.eta"),
        ("+constraint.by_source.a=0.1", "constraint.by_source.a=0.1: Input should be a dictionary"),
        ("+refiner.by_source.a.template=", "refiner.by_source.a.template=None: "),
        ("+refiner.by_source.a=", "refiner.by_source.a=None: Input should be a valid dictionary"),
        (
            "+refiner.by_source.a.url=http://h/v1 +refiner.by_source.a.urls=x",
            "refiner.by_source.a.urls: this key cannot",
        ),
        ("+refiner.by_source.a.num_replicas=1", "refiner.by_source.a.num_replicas is of a model of the source's own: "),
        ("+refiner.by_source.a.api_key_env=KEY", "refiner.by_source.a.api_key_env is of a server by URL: set "),
        (
            "+refiner.by_source.a.model_path=other",
            "refiner.by_source.a.model_path=other: refiner.placement=colocated hosts one model; set refiner.placement=",
        ),
    ],
)
def test_a_key_that_is_wrong(override: str, message: str) -> None:
    assert error_of(*override.split()).startswith(message)
    assert error_of(*override.split()).endswith(", or null") is ("per_group" in override)


def test_what_a_data_source_is_refined_by() -> None:
    """What it does not name is the common one; of another server it takes neither context nor key."""
    common = ("refiner.temperature=0.5", "refiner.skip_reward_at_least=1.0", "refiner.max_model_len=900")
    servers = ("refiner.placement=external", "refiner.url=http://a/v1", "refiner.api_key_env=KEY")
    own = "refiner.by_source={like: {}, cold: {temperature: 0, skip_reward_at_least: null}, far: {url: http://b/v1}}"
    for placement in ((), servers):
        refiner = load(composed(*placement, *common, own)).refiner
        like, cold, far = refiner.sources.values()
        assert (like.temperature, like.skip_reward_at_least, like.max_model_len) == (0.5, 1.0, 900)
        assert (cold.temperature, cold.skip_reward_at_least, cold.max_model_len) == (0.0, None, 900)
        own_keys = {"by_source": 0, "sources": 0}
        assert type(like) is type(cold) is type(refiner) and {**vars(like), **own_keys} == {**vars(refiner), **own_keys}
        assert isinstance(far, External) and far.url == ["http://b/v1"] and far.api_key_env is None
        assert (far.temperature, far.skip_reward_at_least, far.max_model_len) == (0.5, 1.0, sys.maxsize)
        assert {*refiner.own_servers} == {"far"}


def models_of(by_source: str, *overrides: str) -> dict[str, Any]:
    """Return the models of a dedicated refiner: data sources, replicas and engine settings by the key of each model."""
    uses = load(composed(*DEDICATED, f"refiner.by_source={by_source}", *overrides)).refiner.models
    return {use.key: (use.path, [*use.settings], use.first.num_replicas, use.first.rollout) for use in uses}


def test_the_models_of_data_sources() -> None:
    """Each has one replica unless it says so, and the common engine settings."""
    common = ("refiner.rollout={dtype: half}", "refiner.num_replicas=2", "refiner.model_path=m")
    own = "{a: {}, b: {model_path: x}, c: {url: http://h/v1}, d: {model_path: x}, e: {model_path: y, num_replicas: 3, "
    assert models_of(own + "rollout: {tensor_model_parallel_size: 2}}}", *common) == {
        "refiner": ("m", ["", "a"], 2, {"dtype": "half"}),
        "refiner.by_source.b": ("x", ["b", "d"], 1, {"dtype": "half"}),
        "refiner.by_source.e": ("y", ["e"], 3, {"tensor_model_parallel_size": 2}),
    }


@pytest.mark.parametrize(
    ("by_source", "said"),
    [
        ("{a: {model_path: x, url: http://h/v1}}", "refiner.by_source.a.model_path=x: a source's refiner is a hosted "),
        ("{a: {model_path: model}}", "refiner.by_source.a.model_path=model: this is the common model; leave "),
        ("{a: {model_path: x, num_replicas: 0}}", "refiner.by_source.a.num_replicas=0: Input should be greater"),
        ("{a: {rollout: {}}}", "refiner.by_source.a.rollout is of a model of the source's own: set "),
        (
            "{a: {model_path: x}, b: {model_path: x, num_replicas: 2}}",
            "refiner.by_source.b.num_replicas=2, but refiner.by_source.a.num_replicas=1 of the same model (x); set ",
        ),
        (
            "{a: {model_path: x}, b: {model_path: y}, c: {model_path: z}, d: {model_path: w}}",
            "refiner.by_source: the run would host 5 models as refiners, and at most 4 are possible; let ",
        ),
        (
            "{a: {model_path: x, rollout: {gpu_memory_utilization: 2}}}",
            "refiner.by_source.a.rollout.gpu_memory_utilization=2: set a number above 0 and at most 1 [numbers-",
        ),
        (
            "{a: {model_path: x, rollout: {name: sglang}}}",
            "refiner.by_source.a: a hosted refiner runs on vllm, not on sglang, ",
        ),
    ],
)
def test_a_model_of_a_data_source_that_cannot_be_hosted(by_source: str, said: str) -> None:
    assert error_of(*DEDICATED, "refiner.model_path=model", f"refiner.by_source={by_source}").startswith(said)


def test_a_model_whose_data_sources_have_no_weight_is_not_hosted() -> None:
    own = "refiner.by_source={a: {model_path: x}, b: {model_path: x}}"
    model, weight = "refiner.model_path=model", "constraint.by_source={{a: {{eta: 0}}, b: {{eta: {}}}}}"
    load(composed(*DEDICATED, model, own, weight.format(0.1)))
    said = error_of(*DEDICATED, model, own, weight.format(0))
    assert said.startswith("refiner.by_source.a.model_path=x would take GPUs for nothing, ")


def test_data_sources_with_any_name() -> None:
    overrides = ["actor_rollout_ref.model.path=model", r"refiner.by_source={open/a.b:{},math\:hard:{},2024:{}}"]
    with initialize_config_dir(str(CONFIG), version_base=None):  # by Hydra's own grammar
        loaded = load(compose("online_refiner", overrides=overrides))
    assert [*loaded.refiner.sources] == ["open/a.b", "math:hard", "2024"]


@pytest.mark.parametrize("own", [{}, {"constraint": None}, {"constraint": "sft"}])
def test_a_config_without_the_blocks(own: dict[str, Any]) -> None:
    config = composed()
    del config["constraint"]
    config.update(own)
    with pytest.raises(ValueError, match="no block `constraint`"):
        load(config)


def test_a_foreign_recipe_takes_the_config_group(tmp_path: Path) -> None:
    (tmp_path / "foreign.yaml").write_text(
        "hydra: {searchpath: [pkg://verl.trainer.config, pkg://recipe.online_refiner.config]}\n"
        "defaults: [ppo_trainer, {refinement: online}, _self_]\n"
        "constraint: {eta: 0.5}\n"
    )
    with initialize_config_dir(str(tmp_path), version_base=None):
        config = compose(
            "foreign", overrides=["actor_rollout_ref.model.path=model", "actor_rollout_ref.rollout.name=vllm"]
        )
    loaded = load(config)
    assert (loaded.refiner.model_path, loaded.constraint.eta) == ("model", 0.5)
    assert config.run_dir.startswith("runs/")


# ---- rules: without the mistake a config passes, with it one line ends with the rule's id

PENALTY, SFT, LAGRANGIAN = (f"constraint.mode={mode}" for mode in ("penalty", "sft", "lagrangian"))
NONE, TRACKED = "constraint.mode=none", "measure.num_kl_rollouts=8"
MODEL, ACTOR, ROLLOUT = (f"actor_rollout_ref.{name}" for name in ("model", "actor", "rollout"))
DEDICATED = ("refiner.placement=dedicated", "refiner.n_gpus_per_node=1")
SHARED = ("refiner.placement=shared", f"{MODEL}.lora_rank=8")
EXTERNAL = ("refiner.placement=external", "refiner.url=http://host:8000/v1")
SOLVED = ("constraint.imitate_solved=true", "refiner.skip_reward_at_least=1.0")
RESCUE = ("constraint.rescue_dead_groups=true", *DEDICATED, f"{ROLLOUT}.n=2")
FILTER = "algorithm.filter_groups={enable: true, metric: reward}"
REWARD_MODEL = "reward.reward_model.enable=true"
IN_PLACE, SOFT = ("constraint.target=in_place",), "constraint.mode=soft:Soft"  # examples/own_constraint
FAILED = (PENALTY, *IN_PLACE, "constraint.reward_gate=failed", "refiner.skip_reward_at_least=1.0", f"{ROLLOUT}.n=2")
ULYSSES = "ulysses_sequence_parallel_size"
SAPO = f"{ACTOR}.policy_loss.loss_mode=sapo"
DISTILLED = ("distillation.enabled=true", "distillation.teacher_models.teacher_model.model_path=teacher")
NO_REWARDS = "distillation.distillation_loss.use_task_rewards=false"
LOG_PROB_SIZE = (f"{ROLLOUT}.log_prob_use_dynamic_bsz=true", f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1024")
SEPARATE = (
    "trainer.v1.trainer_mode=separate_async",
    *DEDICATED,
    f"{ROLLOUT}.nnodes=1",
    f"{ROLLOUT}.n_gpus_per_node=2",
    "data.train_batch_size=1024",
    f"{ACTOR}.ppo_mini_batch_size=256",
    f"{ROLLOUT}.checkpoint_engine.backend=nccl",
    f"{ACTOR}.fsdp_config.reshard_after_forward=true",
)
COLOCATED = ("refiner.placement=colocated", "refiner.n_gpus_per_node=null")
SAVED, LOADED = (f"{ACTOR}.checkpoint.{name}_contents" for name in ("save", "load"))
MISTAKES = {
    "constraint-goes-with-the-rest": [
        ((), "constraint.eta_schedule=adaptive"),
        (("constraint.eta_schedule=adaptive", "constraint.delta=1"), "constraint.eta=0"),
        (("+constraint.by_source.a.eta=0.1",), "constraint.eta=0"),
        ((), "constraint.delta=1"),
        ((SOFT, SOLVED[1]), SOLVED[0]),
        (SOLVED, "refiner.skip_reward_at_least=null"),
        ((PENALTY, "constraint.eta_schedule=adaptive", "constraint.delta=1"), *IN_PLACE),
        ((PENALTY, *IN_PLACE), "constraint.in_place_template=none"),
        (FAILED, f"{ROLLOUT}.n=1"),
        (FAILED, "refiner.skip_reward_at_least=null"),
        *((FAILED, f"refiner.{key}") for key in ("max_refinements_per_group=1", "budget=0.1")),
        *((added, SOFT) for added in (SHARED, (f"{MODEL}.use_fused_kernels=true",))),
        ((f"+{ACTOR}.fsdp_config.pad_to_length=true",), SOFT),
        (("algorithm.adv_estimator=gdpo",), PENALTY),
        ((LAGRANGIAN,), "algorithm.adv_estimator=gdpo"),
        ((), f"{ACTOR}.policy_loss.loss_mode=geo_mean"),
        *(((PENALTY, *DISTILLED, added), NO_REWARDS) for added in ("constraint.credit=in_reward", *IN_PLACE)),
        ((LAGRANGIAN, *DISTILLED), NO_REWARDS),
        ((LAGRANGIAN,), "constraint.sft_normaliser=accepted"),
        ((f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",), LAGRANGIAN),
        ((LAGRANGIAN,), SAPO),
        *[(RESCUE, f"algorithm.adv_estimator={name}") for name in ("gae", "reinforce_plus_plus", "gdpo")],
        (RESCUE, "algorithm.filter_groups={enable: true, metric: acc}"),
        (RESCUE, "algorithm.use_kl_in_reward=true"),
        (RESCUE, f"{ROLLOUT}.n=1"),
        ((*RESCUE, FILTER), "refiner.streaming=false"),
        (EXTERNAL, SOFT),
        ((*EXTERNAL, "measure.num_kl_rollouts=0"), *IN_PLACE),
    ],
    "keys-do-what-they-say": [
        ((), "trainer.experiment_name=2026_11_28"),
        ((), f"{ACTOR}.clip_ratio=0.4"),
        ((f"{ROLLOUT}.n=2",), f"{ROLLOUT}.full_determinism=true"),
    ],
    "folders-are-local": [
        ((), "run_dir=s3://bucket/run"),
        *(
            ((), f"trainer.{name}_dir={url}")
            for name, url in {"default_local": "gs://b/c", "rollout_data": "hdfs://b/c"}.items()
        ),
        ((), "trainer.default_local_dir=file:///tmp/c"),
        (("trainer.resume_mode=resume_path",), "trainer.resume_from_path=s3://b/global_step_3"),
        ((), "global_profiler.save_path=s3://b/profile"),
    ],
    "checkpoints-have-the-state": [
        ((), f"{SAVED}=[model,optimiser,extra]"),
        ((), f"{SAVED}=model"),
        ((), f"{SAVED}=[model,Optimizer]"),
        ((), f"{SAVED}=[hf_model]"),
        ((), f"{SAVED}=[]"),
        ((), f"{SAVED}=[optimizer,extra]"),
        ((), f"{LOADED}=[weights,optimizer,extra]"),
        ((), f"{LOADED}=all"),
        ((), f"{LOADED}=[optimizer,extra]"),
        ((), f"{LOADED}=[model,optimizer,extra,hf_model]"),
        ((f"{LOADED}=[model,optimizer,extra]", f"{SAVED}=[model,optimizer,extra]"), f"{SAVED}=[model]"),
        (("trainer.resume_mode=disable", f"{SAVED}=[hf_model]"), "trainer.resume_mode=auto"),
        (("trainer.resume_mode=disable",), f"{SAVED}=[model,optim]"),
        (("critic.checkpoint.save_contents=[model,optim]",), "critic.enable=true"),
        (("critic.enable=true",), "critic.checkpoint.load_contents=[extra]"),
    ],
    "adapter-can-be-served": [
        ((f"{MODEL}.lora_rank=512",), f"{MODEL}.lora_rank=513"),
        ((f"{MODEL}.lora_rank=1024", f"{MODEL}.lora.merge=true"), f"{MODEL}.lora.merge=false"),
    ],
    "numbers-are-possible": [
        *(((), f"{ROLLOUT}.{key}") for key in ("top_k=-2", "top_k=1.5", "val_kwargs.top_k=-2", "n=true")),
        *(((), f"{ROLLOUT}.val_kwargs.{key}") for key in ("temperature=-1", "temperature=cold", "top_p=0")),
        *(((), f"data.{key}") for key in ("train_batch_size=0", "max_prompt_length=null", "train_max_samples=-2")),
        ((), "data.train_batch_size=1000.0"),  # 1e3 on the command line
        *(((), key) for key in ("reward.num_workers=0", f"{ROLLOUT}.agent.num_workers=0", f"{ACTOR}.ppo_epochs=0")),
        *(((), f"trainer.{key}=0") for key in ("nnodes", "n_gpus_per_node", "total_epochs", "total_training_steps")),
        *(((), f"{ACTOR}.{key}") for key in ("ppo_mini_batch_size=0", "clip_ratio=0", "optim.lr=-1.0")),
        *(
            ((), f"{ROLLOUT}.{key}")
            for key in ("n=0", "n=two", "n=1.5", "temperature=0", "temperature=2.5", "top_p=1.5")
        ),
        *(((), f"{block}.gpu_memory_utilization=1.1") for block in (ROLLOUT, "+refiner.rollout")),
        *(((), f"{block}.gpu_memory_utilization=null") for block in (ROLLOUT, "reward.reward_model.rollout")),
        (SHARED, f"{MODEL}.lora_rank=eight"),
        *(((), f"actor_rollout_ref.{name}.fsdp_config.fsdp_size=all") for name in ("actor", "ref")),
        ((), f"actor_rollout_ref.ref.fsdp_config.{ULYSSES}=two"),
        *(((), key) for key in (f"{ROLLOUT}.response_length=long", f"{MODEL}.lora.rank=eight")),
        *(
            ((), key)
            for key in (
                f"{ROLLOUT}.val_kwargs.n=null",
                f"{ROLLOUT}.max_num_batched_tokens=null",
                "+ray_kwargs.ray_init.num_gpus=all",
            )
        ),
        ((), "algorithm.gamma=1.1"),
        (("critic.ppo_mini_batch_size=0",), "algorithm.adv_estimator=gae"),
        (("critic.ppo_mini_batch_size=0",), "critic.enable=true"),
        (("critic.fsdp.fsdp_size=all",), "critic.enable=true"),
        ((f"critic.fsdp.{ULYSSES}=0",), "critic.enable=true"),
    ],
    "shards-divide-the-gpus": [
        ((f"{ACTOR}.fsdp_config.fsdp_size=4",), f"{ACTOR}.fsdp_config.fsdp_size=3"),
        ((), "actor_rollout_ref.ref.fsdp_config.fsdp_size=5"),
        (("critic.fsdp.fsdp_size=5",), "critic.enable=true"),
    ],
    "engine-can-train": [
        ((), f"{MODEL}.lora.rank=8"),
        ((), f"{ACTOR}.strategy=megatron"),
        (("critic.strategy=megatron",), "critic.enable=true"),
    ],
    "keys-are-read": [
        ((), f"{ACTOR}.grad_clip=0.5"),
        ((), "custom_reward_function.path=x.py"),
        ((), "reward_model.reward_manager=dapo"),
        ((), "sandbox_fusion.url=http://host"),
    ],
    "refiner-goes-with-the-rest": [
        *((EXTERNAL, f"refiner.url={url}") for url in ("host:8000/v1", "[http://host/v1, ftp://host/v1]")),
        *((EXTERNAL, f"refiner.url=https://{rest}") for rest in ("me:key@host/v1", "host/v1?key=1", "/v1")),
        *((EXTERNAL, f"refiner.api_key_env={key}") for key in ("sk-key", "''", "9key")),
        ((), REWARD_MODEL),
        (DEDICATED, REWARD_MODEL),
        ((), "refiner.template=none"),
        ((), "refiner.by_source={a: {template: none}}"),
        ((), "refiner.by_source={a: {response_length: 513}}"),
        ((), "refiner.by_source={a: {url: host/v1}}"),
        ((), "refiner.by_source={a: {url: https://host/v1, api_key_env: sk-key}}"),
        ((SOFT,), "refiner.by_source={a: {url: https://host/v1}}"),
        (EXTERNAL, "refiner.model_path=other"),
        ((*EXTERNAL, "refiner.api_key_env=KEY"), "+ray_kwargs.ray_init.runtime_env.env_vars.KEY=sk-key"),
        *[(SHARED, f"{MODEL}.{own}") for own in ("lora_rank=0", "lora_adapter_path=x", "lora.merge=true")],
        (SHARED, "refiner.model_path=other"),
        *[(SHARED, f"{ROLLOUT}.{own}") for own in ("name=sglang", "quantization=fp8", "disaggregation.enabled=true")],
        (SHARED, "trainer.v1.trainer_mode=colocate_async"),
        ((*SEPARATE, *COLOCATED, NONE), PENALTY),
        (("refiner.rollout={name: vllm}", f"{ROLLOUT}.name=trtllm"), "refiner.rollout={name: trtllm}"),
        ((), f"{ROLLOUT}.name=sglang"),
    ],
    "refinements-fit-into-micro-batches": [
        ((PENALTY, *LOG_PROB_SIZE), f"{ROLLOUT}.log_prob_max_token_len_per_gpu=1023"),
        (
            (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=1024", *LOG_PROB_SIZE),
            f"{ACTOR}.ppo_max_token_len_per_gpu=1023",
        ),
        (
            (PENALTY, *LOG_PROB_SIZE, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=512", f"{ACTOR}.{ULYSSES}=2"),
            f"{ACTOR}.{ULYSSES}=1",
        ),
    ],
    "refined-rows-are-trained-as-others": [((), f"{MODEL}.mtp.enable=true")],
    "reference-log-probs-are-at-temperature-1": [
        *(((f"{ROLLOUT}.temperature=0.7",), key) for key in (SOFT, *IN_PLACE)),
    ],
    "agent-loops-have-one-manager": [(DEDICATED, f"{ROLLOUT}.agent.agent_loop_manager_class=my.Manager")],
    "trainer-is-extended": [((), "trainer.v1.trainer_mode=moon"), ((), "trainer.use_v1=false")],
    "fetches-make-a-step": [
        (("data.gen_batch_size=300", FILTER), "algorithm.filter_groups.enable=false"),
        (("data.gen_batch_size=256",), "data.gen_batch_size=2048"),
    ],
    "separate-trainer-has-its-parts": [
        (SEPARATE, "refiner.streaming=false"),
        (SEPARATE, f"{MODEL}.lora_rank=8"),
        (SEPARATE, f"{ACTOR}.fsdp_config.param_offload=true"),
        (SEPARATE, "data.train_batch_size=512"),
        ((*SEPARATE, f"{ACTOR}.strategy=fsdp2"), f"{ACTOR}.fsdp_config.reshard_after_forward=false"),
    ],
}
CASES = [(rule, settings, mistake) for rule, cases in MISTAKES.items() for settings, mistake in cases]


@pytest.mark.parametrize(("rule", "settings", "mistake"), CASES)
def test_what_one_setting_makes_wrong(rule: str, settings: tuple[str, ...], mistake: str) -> None:
    load(composed(*settings))
    assert error_of(*settings, mistake).endswith(f" [{rule}]")


COOLED = f"{ROLLOUT}.temperature=0.9"


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ((COOLED,), f"{ROLLOUT}.temperature=0.9"),
        ((COOLED, NONE, TRACKED), f"{ROLLOUT}.temperature=0.9"),
        ((*EXTERNAL, TRACKED), "refiner.placement=external"),
        ((*EXTERNAL, NONE, TRACKED), "refiner.placement=external"),
        (("refiner.placement=shared", NONE, TRACKED), "refiner.placement=shared"),
        ((f"{ROLLOUT}.name=trtllm", NONE, TRACKED), "refiner.placement=external"),
        ((*SEPARATE, *COLOCATED, NONE, TRACKED), "trainer.v1.trainer_mode=separate_async"),
    ],
)
def test_a_kl_that_cannot_be_measured_refuses_no_run(settings: tuple[str, ...], key: str) -> None:
    blocks = load(composed(*settings))
    assert (blocks.num_kl_rollouts, blocks.measures_kl, blocks.measures_kl_by_actor) == (0, False, False)
    assert blocks.fault_of_kl is not None and blocks.fault_of_kl.startswith("measure.num_kl_rollouts=")
    assert key in blocks.fault_of_kl and not blocks.hosts_refiner or blocks.refines


@pytest.mark.parametrize(
    ("mistake", "way_out"),
    [
        ("reward_model.reward_manager=dapo", "set reward.reward_manager.name=dapo"),
        ("+reward_model.reward_kwargs.max_resp_len=9", "set +reward.reward_kwargs.max_resp_len=9"),
        ("reward_model.rollout.name=vllm", "set reward.reward_model.rollout.name=vllm"),
        ("custom_reward_function.path=x.py", "set reward.custom_reward_function.path=x.py"),
    ],
)
def test_an_older_key_of_rewards_is_refused_with_its_place(mistake: str, way_out: str) -> None:
    assert error_of(mistake).endswith(f"; {way_out} [keys-are-read]")


@pytest.mark.parametrize(
    "settings",
    [
        (TRACKED,),
        (*EXTERNAL,),
        (*EXTERNAL, TRACKED, f"{MODEL}.lora_rank=8"),
        (*EXTERNAL, TRACKED, f"{ACTOR}.use_kl_loss=true"),
        (COOLED, TRACKED, f"{ACTOR}.use_kl_loss=true"),
        (COOLED, "measure.num_kl_rollouts=0"),
    ],
)
def test_a_kl_that_can_be_measured_or_is_not_asked_for_has_no_fault(settings: tuple[str, ...]) -> None:
    assert load(composed(*settings)).fault_of_kl is None


@pytest.mark.parametrize("settings", sorted({settings for _, settings, _ in CASES}))
def test_a_control_without_a_constraint_is_had_by_one_key(settings: tuple[str, ...]) -> None:
    loaded = load(composed(*settings, NONE))
    assert not loaded.refines and not loaded.constraint.rescues


@pytest.mark.parametrize("key", ["delta=0.1", "eta=0.5", "rescue_dead_groups=true", "sft_normaliser=accepted"])
def test_what_a_control_does_not_read(key: str) -> None:
    adaptive = ("constraint.eta_schedule=adaptive", "constraint.imitate_solved=true", f"constraint.{key}")
    loaded = load(composed(*adaptive, NONE))
    assert loaded.constraint.first_eta == 0 and not loaded.constraint.rescues


@pytest.mark.parametrize(
    ("overrides", "meant"),
    [
        (("constraint.mode=penality",), "penalty"),
        (("+refiner.placment=dedicated",), "placement"),
        (("refiner.placement=external", "refiner.url=htp:/nonsense"), None),
        (("constraint.mode=moon",), None),
    ],
)
def test_what_a_misspelt_name_was_meant_to_be(overrides: tuple[str, ...], meant: str | None) -> None:
    found = error_of(*overrides)
    assert found.endswith(f"; did you mean {meant}?") if meant else "did you mean" not in found
    assert "htp:" not in overrides[-1] or found.startswith("refiner.url=htp:/nonsense is no ")


@pytest.mark.usefixtures("loggers")
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("refiner.placment=dedicated", "refiner.placment does not exist; did you mean refiner.placement?"),
        ("refiner.imitate_solved=1", "refiner.imitate_solved does not exist; did you mean constraint.imitate_solved?"),
        ("rollout.n=4", "rollout.n does not exist; did you mean actor_rollout_ref.rollout.n?"),
        ("refiner.rollout.seed=1", "refiner.rollout.seed does not exist; write +refiner.rollout.seed=... if it "),
        ("experiment=quickstrat", "experiment=quickstrat is not known; set one of: apps_dapo, "),
        ("platform=cpuu", "platform=cpuu is not known; set one of: cpu, cpu_megatron, gpu; did you mean cpu?"),
        ("dry_run=yess", "dry_run=yess is not known; set one of: false, reward, true"),
        ("console=progres", "console=progres is not known; set one of: log, progress; did you mean progress?"),
    ],
)
def test_what_the_command_says_of_a_misspelt_argument(
    argument: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["main", argument, f"{MODEL}.path=model", "hydra/job_logging=none"])
    with pytest.raises(SystemExit, match="2"):
        command()
    said = capsys.readouterr().err
    assert said.startswith(f"error: {message}") and said.count("\n") == 1


@pytest.mark.parametrize(
    "settings",
    [
        (NONE, "algorithm.adv_estimator=gdpo", "constraint.credit=in_reward"),
        (REWARD_MODEL, "refiner.rollout.gpu_memory_utilization=0.4"),
        (REWARD_MODEL, "reward.reward_model.enable_resource_pool=true"),
        (REWARD_MODEL, "trainer.device=cpu"),
        (*DEDICATED, REWARD_MODEL, "refiner.streaming=false"),
        (*DEDICATED, "refiner.budget=0.1", "refiner.streaming=false"),
        (f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3"),
        (*DEDICATED, f"{ROLLOUT}.agent.agent_loop_manager_class=my.Manager", "refiner.streaming=false"),
        (NONE, f"{MODEL}.mtp.enable=true"),
        (SAPO,),
        (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm",),
        (*DISTILLED, NO_REWARDS),
        (*DISTILLED, LAGRANGIAN),
        (f"{ROLLOUT}.multi_turn.enable=true", f"{ROLLOUT}.agent.default_agent_loop=tool_agent"),
        ("refiner.placement=shared", NONE),
        (f"{ROLLOUT}.name=sglang", "refiner.rollout={name: vllm}"),
        ("trainer.resume_mode=disable", f"{SAVED}=[hf_model]"),
        (f"{SAVED}=[model,hf_model]",),
        (f"{SAVED}=null", f"{LOADED}=null"),
        (f"{SAVED}=[model,optimizer,extra,hf_model]", f"{LOADED}=[model]"),
        ("critic.checkpoint.save_contents=[model,optim]",),
        ("records.path=memory://records", "trainer.default_hdfs_dir=hdfs://host/a"),
        (f"{ROLLOUT}.top_k=0", f"{ROLLOUT}.val_kwargs.temperature=0"),
    ],
)
def test_what_is_not_wrong(settings: tuple[str, ...]) -> None:
    load(composed(*settings))


@pytest.mark.parametrize(
    ("settings", "hosts", "streams"),
    [
        ((NONE,), False, False),
        ((NONE, TRACKED), True, False),
        ((NONE, TRACKED, "algorithm.use_kl_in_reward=true"), False, False),
        ((NONE, TRACKED, *DEDICATED), True, False),
        (DEDICATED, True, True),
        ((*DEDICATED, "refiner.streaming=false"), True, False),
        (SHARED, True, True),
        (EXTERNAL, True, True),
        ((*EXTERNAL, "refiner.streaming=false"), True, False),
        ((*EXTERNAL, NONE), False, False),
        (SEPARATE, True, True),
        ((*SEPARATE, *EXTERNAL, "refiner.n_gpus_per_node=null"), True, True),
    ],
)
def test_who_hosts_and_who_streams(settings: tuple[str, ...], hosts: bool, streams: bool) -> None:
    loaded = load(composed(*settings))
    assert (loaded.hosts_refiner, loaded.streams) == (hosts, streams)


# ---- Megatron


@functools.cache
def on_megatron() -> bytes:
    with initialize_config_dir(str(CONFIG), version_base=None):
        sizes = [f"{ACTOR}.ppo_mini_batch_size=4", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"]
        sizes += [f"{ROLLOUT}.n=2", f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=4"]
        overrides = ["platform=cpu_megatron", f"{MODEL}.path=model", "trainer.n_gpus_per_node=2", *sizes]
        return pickle.dumps(compose("online_refiner", overrides=overrides))


ON_MEGATRON: list[tuple[str | None, dict[str, Any]]] = [
    (None, {}),
    (None, {"critic.optim.optimizer": "sgd"}),  # no critic
    ("engine-can-train", {f"{ACTOR}.megatron.use_distributed_optimizer": False}),
    ("engine-can-train", {f"{ACTOR}.optim.optimizer": "SGD"}),
    ("engine-can-train", {"critic.optim.optimizer": "sgd", "algorithm.adv_estimator": "gae"}),
    ("engine-can-train", {"critic.optim.optimizer": "sgd", "critic.enable": True}),
    ("engine-can-train", {f"{MODEL}.lora.rank": 8}),
    ("engine-can-train", {f"{ACTOR}.strategy": "fsdp2"}),
    ("engine-can-train", {"actor_rollout_ref.ref.strategy": "fsdp"}),
    ("engine-can-train", {"critic.strategy": "fsdp2", "critic.enable": True}),
    (None, {f"{SAVED}": ["hf_model", "optimizer", "extra"]}),
    (None, {f"{SAVED}": ["model", "optimizer", "extra"], f"{LOADED}": ["hf_model", "optimizer", "extra"]}),
    ("checkpoints-have-the-state", {f"{SAVED}": ["optimizer", "extra"]}),
    ("separate-trainer-has-its-parts", {"trainer.v1.trainer_mode": "separate_async", "constraint.mode": "none"}),
    (None, {f"{ACTOR}.megatron.router_replay.mode": "R3", f"{ROLLOUT}.enable_rollout_routing_replay": True}),
    ("refined-rows-are-trained-as-others", {f"{ACTOR}.megatron.router_replay.mode": "R3"}),
    ("refined-rows-are-trained-as-others", {f"{ACTOR}.megatron.router_replay.mode": "R2"}),
    ("refined-rows-are-trained-as-others", {f"{ACTOR}.veomni": {"router_replay": {"mode": "R3"}}}),
]


@pytest.mark.parametrize(("rule", "changes"), ON_MEGATRON)
def test_what_megatron_asks(rule: str | None, changes: dict[str, Any]) -> None:
    config = pickle.loads(on_megatron())
    for key, value in changes.items():
        OmegaConf.update(config, key, value, force_add=True)
    if rule is None:
        assert load(config).refines
        return
    with pytest.raises(ValueError) as error:
        load(config)
    assert str(error.value).endswith(f" [{rule}]") and "\n" not in str(error.value)


def test_an_engine_beside_the_strategy_of_another_names_the_key_to_drop() -> None:
    config = pickle.loads(on_megatron())
    config.trainer.device, config.actor_rollout_ref.actor.strategy = "cuda", "fsdp2"
    said = f"model_engine=megatron, but {ACTOR}.strategy=fsdp2: drop {ACTOR}.strategy, or drop model_engine "
    with pytest.raises(ValueError, match=re.escape(said)):
        load(config)
    assert error_of(f"{ACTOR}.strategy=megatron").startswith(
        f"model_engine=dp, but {ACTOR}.strategy=megatron: drop {ACTOR}.strategy, or set model_engine=megatron "
    )


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("top_k", (-2, -1, 0, 1, 50, 1.5)),
        ("temperature", (-1.0, 0.0, 0.5, 2.0, 2.5)),
        ("top_p", (-0.1, 0.0, 0.5, 1.0, 1.1)),
    ],
)
def test_sampling_is_refused_where_vllm_refuses_it(name: str, values: tuple[float, ...]) -> None:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError

    for value in values:
        config = composed(f"{ROLLOUT}.val_kwargs.{name}={value}")
        try:
            SamplingParams(**{name: value})
        except VLLMValidationError:
            with pytest.raises(ValueError, match=rf"{name}=\S+: set "):
                load(config)
        else:
            load(config)


def test_adapters_are_served_up_to_vllms_largest_rank() -> None:
    from vllm.config.lora import MaxLoRARanks

    assert max(get_args(MaxLoRARanks)) == LARGEST_RANK


def test_an_engine_on_the_platform_of_another() -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("online_refiner", overrides=["platform=cpu", "model_engine=megatron", f"{MODEL}.path=model"])
    with pytest.raises(ValueError, match=r"platform=cpu_megatron.* \[engine-can-train\]$"):
        load(config)


@pytest.mark.parametrize("platform", ["gpu", "cpu", "cpu_megatron"])
def test_an_engine_beside_a_strategy_is_refused_before_its_settings_are_read(platform: str) -> None:
    """The rules that count tokens read settings which the other engine's block does not have."""
    settings = [f"platform={platform}", "model_engine=megatron", f"{ACTOR}.strategy=fsdp2"]
    settings += [f"{ACTOR}.use_dynamic_bsz=true", f"{ROLLOUT}.log_prob_use_dynamic_bsz=true", f"{MODEL}.path=model"]
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("online_refiner", overrides=settings)
    with pytest.raises(ValueError, match=rf"{ACTOR}.strategy=fsdp2: .*drop .* \[engine-can-train\]$"):
        load(config)


def test_every_rule_has_a_case() -> None:
    assert {*MISTAKES} == {rule_id(one) for kind in ("paths", "numbers", "config") for one in RULES[kind]}


SIZE = f"{ACTOR}.ppo_mini_batch_size"
STAGES = {
    f"{ACTOR}.megatron.pipeline_model_parallel_size": 2,
    f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": 2,
}


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        (STAGES, False),  # 8 rows of one rank: 2 groups of 2 micro-batches of 2 rows
        ({**STAGES, SIZE: 3}, True),
        ({**STAGES, SIZE: 6}, False),
        ({**STAGES, "trainer.n_gpus_per_node": 4, SIZE: 6}, True),  # 6 rows on each of two ranks
        ({**STAGES, f"{ACTOR}.megatron.virtual_pipeline_model_parallel_size": 1, SIZE: 3}, False),
    ],
)
def test_virtual_stages_get_whole_groups_of_micro_batches(changes: dict[str, Any], refused: bool) -> None:
    config = pickle.loads(on_megatron())
    for key, value in changes.items():
        OmegaConf.update(config, key, value)
    found = micro_batches_are_filled(PlannedRun(config=config, blocks=load(config)))
    assert (found is not None) is refused and (found is None or "virtual pipeline stages" in found)


@pytest.mark.parametrize(("shares", "refused"), [(1, True), (2, False)])
def test_a_critic_shares_sequences_by_its_own_key(shares: int, refused: bool) -> None:
    """Its 8 rows of a mini-batch fall on 4 or 2 ranks."""
    sizes = [f"{ACTOR}.ppo_mini_batch_size=4", f"{ACTOR}.ppo_micro_batch_size_per_gpu=2", f"{ROLLOUT}.n=2"]
    of_critic = ["critic.enable=true", "critic.ppo_micro_batch_size_per_gpu=4", f"critic.fsdp.{ULYSSES}={shares}"]
    config = composed(*sizes, *of_critic, f"{ACTOR}.use_dynamic_bsz=false")
    run = PlannedRun(config=config, blocks=load(config))
    run.plan = SimpleNamespace(num_gpus=4)
    found = micro_batches_are_filled(run)
    assert (found is not None) is refused and (found is None or found.startswith("critic."))


def test_the_layout_of_a_cluster() -> None:
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("online_refiner", overrides=["experiment=apps_dapo_megatron"])
    assert layout(config) == {"tensor": 8, "pipeline": 2, "context": 1, "data": 2}
