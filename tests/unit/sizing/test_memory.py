"""Memory of known models: numbers computed by hand."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from composed_main import base, composed
from omegaconf import OmegaConf
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from experiments.gpu_quarter.measured import part
from recipe.online_refiner.config import checks
from recipe.online_refiner.config.replicas import rollout_config
from recipe.online_refiner.plan import HostedModel, Plan, place
from recipe.sizing import moments, shapes, state
from recipe.sizing.moments import GIB, Footprint
from recipe.sizing.refusals import refusals

QWEN_7B = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "max_position_embeddings": 32768,
    "sliding_window": 131072,
    "use_sliding_window": False,
}
NUM_PARAMETERS = 7_615_616_512  # as its card says
LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
}
QWEN_30B = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
SHAPE = shapes.read(QWEN_7B)
ROWS = (
    "data.max_prompt_length=1024",
    "data.max_response_length=4096",
    "data.train_batch_size=64",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
)


def footprint_of(*overrides: str, gpu: float | None = 80 * GIB, critic: shapes.Shape | None = None) -> Footprint:
    """Return what the plan finds of a run of Qwen2.5-7B."""
    config = composed(*ROWS, *overrides)
    blocks = checks.load(config)
    num_gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    values = dict.fromkeys(field.name for field in dataclasses.fields(Plan))
    values |= {"policy_shape": SHAPE, "critic_shape": critic, "gpu_memory": gpu, "num_gpus": num_gpus}
    values["hosted"] = [
        HostedModel(
            use=use,
            max_model_len=9316,
            least_model_len=1,
            max_positions=9316,
            model=config.actor_rollout_ref.model,
            rollout=rollout_config(config, use, 9316),
            shape=SHAPE,
            num_replicas=use.first.num_replicas or 0,
        )
        for use in blocks.refiner.models
    ]
    place(values["hosted"], num_gpus)
    return Plan(**values).footprint(config, blocks)


def test_each_model_has_gpus_of_its_own() -> None:
    """Only the common one gives log-probs for the KL."""
    own = "{a: {model_path: x, rollout: {gpu_memory_utilization: 0.05}, max_model_len: 999}, b: {}}"
    found = footprint_of("refiner.placement=dedicated", "refiner.n_gpus_per_node=8", f"refiner.by_source={own}")
    shares = {(one.name, one.where): one.share for one in found.servers}
    assert shares == {
        ("rollout", "training GPU"): 0.5,
        ("refiner", "refiner GPU"): 0.5,
        ("refiner of a", "GPU of the refiner of a"): 0.05,
    }
    assert "log pi_0" in sizes(found, "refiner awake") and "log pi_0" not in sizes(found, "refiner of a awake")
    assert [*sizes(found, "refiner of a awake")] == ["refiner of a's engine"]
    (line, *_) = refusals(found)
    assert line.startswith("the refiner of a's weights take 7.1 GiB a GPU, its share is 4.0 GiB (refiner.by_source.a.")
    assert found.servers[2].length_key == "refiner.by_source.a.max_model_len"


@pytest.mark.parametrize(
    ("sizes_of", "replicas", "num_gpus", "places"),
    [
        ([1], [0], 4, [0]),
        ([2], [1], 8, [0]),
        ([1, 1], [0, 1], 4, [0, 3]),
        ([1, 4, 2], [0, 1, 1], 8, [6, 0, 4]),
        ([4, 1, 2], [0, 2, 1], 8, [0, 6, 4]),
    ],
)
def test_larger_replicas_come_first(sizes_of: list[int], replicas: list[int], num_gpus: int, places: list[int]) -> None:
    """The common model, which is the first, has the GPUs that are left."""
    hosted: list[Any] = [
        HostedModel(
            **dict.fromkeys(("use", "model", "shape")),
            **dict.fromkeys(("max_model_len", "least_model_len", "max_positions"), 9),
            rollout=OmegaConf.create(
                {f"{kind}_parallel_size": 1 for kind in ("data", "pipeline_model")}
                | {"tensor_model_parallel_size": size}
            ),
            num_replicas=number,
        )
        for size, number in zip(sizes_of, replicas, strict=True)
    ]
    place(hosted, num_gpus)
    assert [one.first_gpu for one in hosted] == places
    left = num_gpus - sum(one.num_replicas * one.replica_size for one in hosted[1:])
    assert hosted[0].num_replicas == (replicas[0] or left // hosted[0].replica_size)


def sizes(found: Footprint, name: str) -> dict[str, float]:
    moment = next(one for one in found.moments if one.name == name)
    return {part.name: part.size for part in moment.parts}


def test_parameters_are_those_of_the_models_cards_and_a_token_of_kv_cache() -> None:
    assert SHAPE.num_parameters == NUM_PARAMETERS and SHAPE.is_known
    assert shapes.read(LLAMA_8B).num_parameters == 8_030_261_248
    sparse = shapes.read(QWEN_30B)
    assert sparse.num_parameters == 30_532_122_624
    assert shapes.read({**LLAMA_8B, "tie_word_embeddings": True}).num_parameters == 8_030_261_248 - 128256 * 4096
    assert shapes.read({"text_config": LLAMA_8B}).num_parameters == 8_030_261_248
    assert shapes.read({"model_type": "mamba", "hidden_size": 4096}) is None
    assert not shapes.read({**LLAMA_8B, "model_type": "gemma3"}).is_known
    assert not shapes.read({**QWEN_7B, "use_sliding_window": True}).is_known
    assert SHAPE.kv_bytes() == 28 * 2 * 4 * 128 * 2 == 57344
    assert SHAPE.kv_bytes(2) == 57344 / 2
    assert SHAPE.kv_bytes(8) == 57344 / 4, "a head is not cut"


def test_the_part_that_sees_is_counted() -> None:
    """Against the models of transformers, without their weights."""
    text = {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_key_value_heads": 2}
    text |= {"num_attention_heads": 16, "vocab_size": 151936, "tie_word_embeddings": True}
    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 2048}
    qwen_3b = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)
    models = {Qwen2_5_VLForConditionalGeneration: qwen_3b, Qwen3VLForConditionalGeneration: Qwen3VLConfig()}
    for make, config in models.items():
        with torch.device("meta"):
            model = make(config)
        shape = shapes.read(config.to_dict())
        assert shape is not None
        seeing = sum(one.numel() for one in model.model.visual.parameters())
        assert shape.vision == pytest.approx(seeing, rel=1e-3)
        assert shape.num_parameters == pytest.approx(sum(one.numel() for one in model.parameters()), rel=1e-3)
        assert shape.block * shape.num_layers + shape.embeddings + shape.vision == pytest.approx(shape.num_parameters)
    assert shapes.read({**LLAMA_8B, "vision_config": {"hidden_size": 8}}).vision == 0, "its sizes are not stated"


def test_fsdp_in_float32_on_eight_gpus() -> None:
    actor = composed().actor_rollout_ref.actor
    found = state.fsdp(SHAPE, actor, actor.fsdp_config, key="k", lora_rank=0, num_gpus=8)
    of_four = 4 * NUM_PARAMETERS / 8
    assert (found.parameters, found.gradients, found.adam) == (of_four, of_four, 2 * of_four)
    assert found.resting == 3 * of_four and found.on_host == 0
    actor.fsdp_config.update(fsdp_size=4, optimizer_offload=True, model_dtype="bf16")
    found = state.fsdp(SHAPE, actor, actor.fsdp_config, key="k", lora_rank=0, num_gpus=8)
    assert found.parameters == 2 * NUM_PARAMETERS / 4 == found.resting and found.on_host == 2 * found.parameters
    actor.fsdp_config.model_dtype = 16  # verl takes bits too
    assert state.fsdp(SHAPE, actor, actor.fsdp_config, key="k", lora_rank=0, num_gpus=8) == found
    adapters = state.fsdp(SHAPE, actor, actor.fsdp_config, key="k", lora_rank=16, num_gpus=8)
    # q, o: 3584 + 3584; k, v: 3584 + 512; gate, up, down: 3584 + 18944
    num_trained = 16 * 28 * (2 * 7168 + 2 * 4096 + 3 * 22528)
    assert adapters.gradients == 2 * num_trained / 4 and adapters.parameters == found.parameters


def test_megatron_on_eight_gpus() -> None:
    actor = base("megatron").actor_rollout_ref.actor.copy()
    OmegaConf.set_readonly(actor, False)
    actor.megatron.update(tensor_model_parallel_size=2, pipeline_model_parallel_size=2)
    found = state.megatron(SHAPE, actor, key="k", lora_rank=0, num_gpus=8)
    table = 152064 * 3584
    share = ((NUM_PARAMETERS - 2 * table - 3584) / 2 + (2 * table + 3584) / 2) / 2
    assert found.parameters == 2 * share and found.gradients == 4 * share
    assert found.adam == 12 * share / 2, "two data-parallel ranks"
    sparse = shapes.read(QWEN_30B)
    actor.megatron.update(pipeline_model_parallel_size=1, expert_model_parallel_size=4, expert_tensor_parallel_size=1)
    found = state.megatron(sparse, actor, key="k", lora_rank=0, num_gpus=8)
    dense, experts = (sparse.num_parameters - sparse.experts) / 2, sparse.experts / 4
    assert found.parameters == pytest.approx(2 * (dense + experts))
    assert found.adam == pytest.approx(12 * (dense / 4 + experts / 2))


@pytest.mark.parametrize(("strategy", "is_kept"), [("fsdp", False), ("fsdp2", True)])
def test_what_offload_policy_keeps_in_host_memory(strategy: str, is_kept: bool) -> None:
    key = "actor_rollout_ref.actor"
    run = footprint_of(f"{key}.strategy={strategy}", f"{key}.fsdp_config.offload_policy=true")
    everything = 4 * 4 * NUM_PARAMETERS / 8  # weights, gradients, two moments
    (host,) = (one for one in run.moments if one.where == "host")
    kept = {part.key: part.size for part in host.parts if part.name == "actor's state"}
    assert kept == ({f"{key}.fsdp_config.offload_policy": 8 * everything} if is_kept else {})
    parts = sizes(run, "training")
    on_gpu = (parts.get(name, 0) for name in ("parameters", "gradients", "Adam"))
    assert sum(on_gpu) == (0 if is_kept else everything)


@pytest.mark.parametrize(("fraction", "share"), [(None, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_what_megatron_keeps_in_host_memory(fraction: float | None, share: float) -> None:
    actor = base("megatron").actor_rollout_ref.actor.copy()
    OmegaConf.set_readonly(actor, False)
    OmegaConf.set_struct(actor, False)
    settings = {"optimizer_cpu_offload": True, **({} if fraction is None else {"optimizer_offload_fraction": fraction})}
    actor.optim.override_optimizer_config = settings
    found = state.megatron(SHAPE, actor, key="k.megatron", lora_rank=0, num_gpus=8)
    adam = 12 * NUM_PARAMETERS / 8
    assert found.adam == pytest.approx((1 - share) * adam) and found.on_host == pytest.approx(share * adam)
    assert not share or found.key_of_host == "k.optim.override_optimizer_config.optimizer_offload_fraction"


def test_a_micro_batch() -> None:
    tokens = 2 * 5120
    assert state.logits(SHAPE, tokens, is_scaled=False, entropy_chunk=0) == 2 * 152064 * tokens
    assert state.logits(SHAPE, tokens, is_scaled=True, entropy_chunk=0) == 3 * 2 * 152064 * tokens
    assert state.logits(SHAPE, tokens, is_scaled=False, entropy_chunk=math.inf) == 3 * 2 * 152064 * tokens
    assert state.logits(SHAPE, tokens, is_scaled=False, entropy_chunk=2048) == 2 * 152064 * (tokens + 4096)
    layer = 2 * (4 * 3584 + 2 * 3584 + 2 * 512 + 4 * 18944) + 8 * 3584
    assert state.activations(SHAPE, 10, is_checkpointed=False) == 28 * 10 * layer
    assert state.activations(SHAPE, 10, is_checkpointed=True) == 10 * (28 * 2 * 3584 + layer)


def test_moments_of_a_colocated_run() -> None:
    found = footprint_of()
    assert [one.name for one in found.moments] == [
        "training",
        "log-probs",
        "rollout awake",
        "refiner awake",
        "weight sync",
        "host memory",
    ]
    parts = sizes(found, "training")
    assert parts["logits"] == 2 * 152064 * 2 * 5120 and parts["gradients"] == 4 * NUM_PARAMETERS / 8
    assert sizes(found, "rollout awake")["rollout's engine"] == 40 * GIB
    assert sizes(found, "refiner awake")["log pi_0"] == 6 * 152064 * 8192
    assert sizes(found, "host memory")["refiner asleep"] == NUM_PARAMETERS * 2 / 2 * 8
    assert [one.name for one in found.servers] == ["rollout", "refiner"]
    assert found.servers[0].weights == NUM_PARAMETERS and found.servers[0].max_model_len == 32768


def test_where_the_refiner_is() -> None:
    dedicated = footprint_of("refiner.placement=dedicated", "refiner.n_gpus_per_node=2")
    assert {one.where for one in dedicated.moments} == {"training GPU", "refiner GPU", "host"}
    assert "refiner asleep" not in sizes(dedicated, "training") | sizes(dedicated, "host memory")
    alone = footprint_of("constraint.mode=none")
    assert [one.name for one in alone.servers] == ["rollout"] and "refiner awake" not in [
        one.name for one in alone.moments
    ]
    awake = footprint_of("actor_rollout_ref.rollout.free_cache_engine=false")
    assert sizes(awake, "training")["rollout's engine"] == sizes(awake, "training")["refiner's engine"] == 40 * GIB
    shared = ("refiner.placement=shared", "actor_rollout_ref.model.lora_rank=8")
    found = footprint_of(*shared, "refiner.model_path=model")
    assert [one.name for one in found.servers] == ["rollout"] and sizes(found, "training")["gradients"] < GIB


def test_a_critic_has_a_size_of_its_own() -> None:
    assert "critic's state" not in sizes(footprint_of(), "training")
    found = footprint_of("critic.ppo_micro_batch_size_per_gpu=2", critic=shapes.read(LLAMA_8B))
    of_four = 4 * 8_030_261_248 / 8
    parts = sizes(found, "training the critic")
    assert (parts["parameters"], parts["gradients"], parts["Adam"]) == (of_four, of_four, 2 * of_four)
    assert parts["actor's state"] == 3 * 4 * NUM_PARAMETERS / 8 and "logits" not in parts
    assert sizes(found, "training")["critic's state"] == 3 * of_four
    assert sizes(found, "training")["parameters"] == 4 * NUM_PARAMETERS / 8
    guessed = footprint_of("critic.ppo_micro_batch_size_per_gpu=2", critic=shapes.read({**LLAMA_8B, "model_type": "a"}))
    assert not any(part.is_sure for part in guessed.moments[0].parts)


@pytest.mark.parametrize(("own", "is_sure"), [((), True), (("actor_rollout_ref.rollout.quantization=fp8",), False)])
def test_quantized_weights_are_an_estimate_where_no_gpu_is_known(own: tuple[str, ...], is_sure: bool) -> None:
    moments = footprint_of(*own, gpu=None).moments
    found = [part.is_sure for moment in moments for part in moment.parts if part.name == "rollout's weights"]
    assert found == [is_sure, is_sure], "awake, and while weights come"


@pytest.mark.parametrize(
    ("settings", "refiner", "rollout", "reference"),
    [
        ((), 8, 0, 0),
        (("refiner.num_replicas=1",), 2, 0, 0),
        (("refiner.num_replicas=5", "trainer.nnodes=2"), 8, 0, 0),
        (("actor_rollout_ref.model.lora_rank=8",), 8, 8, 0),
        (("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora.merge=true"), 8, 0, 0),
        (("actor_rollout_ref.actor.use_kl_loss=true",), 8, 0, 8),
        (("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.model.lora_rank=8"), 8, 8, 0),
    ],
)
def test_whose_weights_wait_in_host_memory(
    settings: tuple[str, ...], refiner: int, rollout: int, reference: int
) -> None:
    """The weights of engines on two GPUs each wait, in bfloat16, and a reference in float32 over eight GPUs."""
    parts = sizes(footprint_of(*settings), "host memory")
    assert parts.get("refiner asleep", 0) == refiner * NUM_PARAMETERS
    assert parts.get("rollout asleep", 0) == rollout * NUM_PARAMETERS
    assert parts.get("reference", 0) == pytest.approx(reference * 4 * NUM_PARAMETERS / 8 * moments.COPIES)


def test_only_a_training_gpu_has_room_for_more_than_its_engine() -> None:
    run = footprint_of("refiner.placement=dedicated", "refiner.nnodes=1", "refiner.n_gpus_per_node=2")
    cuda = {one.name: sizes(run, one.name).get("CUDA") for one in run.moments if one.where != "host"}
    assert cuda.pop("refiner awake") is None and set(cuda.values()) == {moments.TRAINING}
    assert 1.0 * GIB < moments.TRAINING < 8.0 * GIB and 0.0 < moments.ASLEEP < 2.0 * GIB


def test_measurements_are_read_from_the_table_that_a_dry_run_prints() -> None:
    printed = moments.table(footprint_of())
    for name, size in (("parameters", 4 * NUM_PARAMETERS / 8), ("actor's state", 12 * NUM_PARAMETERS / 8)):
        assert part(printed, name) == pytest.approx(size / GIB, abs=0.06)
    with pytest.raises(ValueError, match="no part 'a cat'"):
        part(printed, "a cat")


def test_a_key_to_change_is_named_where_the_memory_does_not_suffice() -> None:
    """How much memory a host has is not known, so nothing is said about it."""
    found = footprint_of()
    assert "of the memory\n" in moments.table(found) and "change" not in moments.table(found)
    small = moments.table(footprint_of(gpu=20 * GIB))
    assert small.count("may not fit") == small.count("to reduce it, change ") == 1


@pytest.mark.parametrize(
    ("setting", "moment", "part"),
    [
        ("trainer.nnodes=2", "training", "Adam"),
        ("actor_rollout_ref.actor.fsdp_config.optimizer_offload=true", "rollout awake", "actor's state"),
        ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "training", "logits"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype=bf16", "training", "parameters"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.3", "refiner awake", "refiner's engine"),
        ("data.max_response_length=2048", "training", "activations"),
    ],
)
def test_what_a_key_makes_smaller(setting: str, moment: str, part: str) -> None:
    before, after = footprint_of(), footprint_of(setting)
    assert sizes(after, moment)[part] < sizes(before, moment)[part]
    for one, other in zip(before.moments, after.moments, strict=True):
        assert one.where == "host" or other.size <= one.size, one.name
