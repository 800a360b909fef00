"""What verl does with this recipe's patches."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from composed_main import composed
from omegaconf import OmegaConf
from tensordict import TensorDict
from tiny_vision import vision_model, vision_tokenizer
from transformers import Glm4vConfig, Glm4vModel
from transformers.models.glm4v.modeling_glm4v import Glm4vTextAttention
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLAttention
from verl.models.transformers import glm4v, qwen2_vl
from verl.trainer.ppo.v1 import replay_buffer, trainer_separate_async
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.utils import tensordict_utils as tu
from verl.workers import engine_workers
from verl.workers.engine import base as engine_base

from recipe.online_refiner.config.fields import read_blocks
from recipe.online_refiner.method.pairs import Pair, Verdict
from recipe.online_refiner.verl_glue import patches
from recipe.online_refiner.verl_glue.rows import with_pair
from recipe.online_refiner.verl_glue.task_runner import OnlineRefinerSeparateAsync
from recipe.online_refiner.verl_glue.trainer import RefinedLogProbs
from refiner_worker.client import RunEndedError

CHANGED = [
    (qwen2_vl, "_get_input_embeds"),
    (qwen2_vl, "qwen2_vl_attn_forward"),
    (glm4v, "_get_input_embeds"),
    (glm4v, "glm4v_attn_forward"),
    (engine_workers, "maybe_fix_3d_position_ids"),
    (engine_base, "maybe_fix_3d_position_ids"),
]
"""What ``mend_models`` changes."""


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in CHANGED:
        monkeypatch.setattr(module, name, getattr(module, name))  # to be as it was, later
    patches.mend_models()


def test_the_patched_worker_answers_in_full() -> None:
    class Upstream(patches.RewardLoopWorker):
        def __init__(self) -> None:
            pass

        async def _preprocess_reward_inputs(self, data: object) -> str:
            return "text"

        async def _post_request(self, payload: dict, endpoint: str, max_retries: int = 16) -> dict:
            return {"data": [{"probs": [0.25]}]}

    worker = Upstream()
    worker.config = OmegaConf.create({"reward": {"reward_model": {"rollout": {"name": "vllm"}, "model_path": "rm"}}})
    assert asyncio.run(worker.compute_score_disrm(None)) == {"reward_score": 0.25, "reward_extra_info": {}}


def test_log_probs_of_refinements_are_computed_between_the_separate_trainer_and_verls_base() -> None:
    order = list(OnlineRefinerSeparateAsync.__mro__)
    own = [one for one in order if "_compute_old_log_prob" in vars(one)]
    assert own == [trainer_separate_async.PPOTrainerSeparateAsync, RefinedLogProbs, PPOTrainer]


ANSWERS = {"score": [0.1, -0.3, 0.7, 1e9 + 0.1], "acc": [True, False, True, True], "tokens": [3, 1, 2, 7]}


def test_groups_with_a_used_refinement_pass_dapos_filter() -> None:
    def tag(verdict: str) -> dict:
        return with_pair({}, Pair(reward=-1.0, verdict=Verdict(verdict), is_used=verdict == "accepted"))

    rewards = {"a": -1.0, "b": -1.0, "c": 1.0, "d": None}
    verdicts = {"a": "accepted", "b": "not_better", "c": "max_reward", "d": "accepted"}
    buffer = SimpleNamespace(
        partitions={"train": {"a_0_0": tag("timeout"), **{f"{name}_1_0": tag(one) for name, one in verdicts.items()}}},
        _dapo_classification_cache={"train": rewards},
        _dapo_filtered_keys=lambda _: ({"a", "b", "c"}, Counter({-1.0: 2, 1.0: 1})),
    )
    groups, counts = patches.keep_refined(buffer)._dapo_filtered_keys("train")
    assert groups == {"b", "c"} and counts == Counter({-1.0: 1, 1.0: 1})


@pytest.mark.parametrize("mode", ["none", "penalty"])
def test_looking_more_often_makes_no_step_idle(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Verl lends the training GPUs for longer after idle steps: those that wait for more than its 2 s between looks."""
    config = composed(f"constraint.mode={mode}", "trainer.v1.trainer_mode=separate_async")
    trainer: Any = object.__new__(OnlineRefinerSeparateAsync)
    trainer.config, trainer.blocks, trainer.parameter_sync_step = config, read_blocks(config), 4
    trainer.trainer_mode = "separate_async"
    buffer = trainer.replay_buffer = trainer._build_replay_buffer()
    slept: list[float] = []
    monkeypatch.setattr(replay_buffer.time, "sleep", slept.append)
    for _ in range(3):
        buffer._wait_for_next_poll("train", time.time())
    assert slept == [patches.POLL_S] * 3

    trainer.hybrid_rollout_config = config.trainer.v1.separate_async.hybrid_rollout
    trainer._switch_threshold_ratio, trainer._idle_steps, trainer._calm_steps = 0.4, 0, 0
    for wait_s, is_idle in ((1.0, False), (1.99, False), (2.01, True)):
        trainer._step_sample_wait_seconds = wait_s
        assert trainer._step_had_idle() is is_idle
    trainer._step_sample_wait_seconds = 1.0
    for _ in range(30):
        trainer._adapt_switch_threshold(trainer._step_had_idle())
    assert trainer._switch_threshold_ratio == pytest.approx(0.25), "no more than a mini-batch is waited for"


def test_a_run_whose_groups_fail_ends() -> None:
    """Verl's buffer takes a group out for one failed session, and asks for another."""
    buffer = object.__new__(ReplayBufferAsync)
    buffer.max_off_policy_threshold = buffer.filter_groups_metric = None
    buffer.failure_keys, cleared = {"train": {"a", "b"}}, []
    buffer._clear_groups = lambda _, uids: cleared.append(uids)
    buffer._metrics_prefix = lambda _: "training"
    patches.end_if_most_fail(buffer, 4)
    for step in (1, 1, 2, 2):
        buffer._evict_terminal_groups(step, "train", buffer._terminal_eviction_reasons(step, "train"))
    assert cleared == [{"a", "b"}] * 4
    with pytest.raises(RunEndedError, match="step 2: 6 prompts are lost"):
        buffer._evict_terminal_groups(2, "train", buffer._terminal_eviction_reasons(2, "train"))


def test_rows_of_no_prompt_are_taken_out_of_a_restored_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    tags = {"a": {"is_prompt": True}, "a_0_0": {}, "b_0_0": {}, "b_1_0": {"is_prompt": False}}
    cleared: list[list[str]] = []
    monkeypatch.setattr(patches.tq, "kv_list", lambda _: {"train": tags})
    monkeypatch.setattr(patches.tq, "kv_clear", lambda keys, partition_id: cleared.append(keys))
    patches.forget_trained_rows()
    assert cleared == [["b_0_0", "b_1_0"]]
    monkeypatch.setattr(patches.tq, "kv_list", lambda _: None)
    patches.forget_trained_rows()
    assert len(cleared) == 1


def qwen2_5_vl() -> tuple[Any, Any]:
    return qwen2_vl, vision_model("qwen2_5_vl", vision_tokenizer()).model


def small_glm4v() -> tuple[Any, Any]:
    sizes = {"hidden_size": 16, "intermediate_size": 16}
    text = {**sizes, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 260}
    vision = {**sizes, "depth": 1, "num_heads": 2, "out_hidden_size": 16, "image_size": 56}
    return glm4v, Glm4vModel(Glm4vConfig(text_config=text, vision_config=vision, image_token_id=20))


@pytest.mark.parametrize("build", [qwen2_5_vl, small_glm4v])
def test_verls_vision_models_fail_on_text(build: Callable[[], tuple[Any, Any]]) -> None:
    """If no error is raised, verl itself unpacks the output: drop ``patches.unpack_pictures``."""
    module, model = build()
    assert not hasattr(module._get_input_embeds, "__wrapped__")
    with pytest.raises(AttributeError, match="has no attribute 'mean'"):
        module._get_input_embeds(model, torch.tensor([[7, 8, 9]]))


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("build", [qwen2_5_vl, small_glm4v])
def test_rows_of_text_have_a_gradient_of_0_in_the_vision_tower(build: Callable[[], tuple[Any, Any]]) -> None:
    module, model = build()
    ids = torch.tensor([[7, 8, 9]])
    embeddings, _ = module._get_input_embeds(model, ids)
    assert torch.equal(embeddings, model.get_input_embeddings()(ids))
    embeddings.sum().backward()
    gradients = [one.grad for one in model.visual.parameters()]
    assert any(one is not None for one in gradients), "all ranks take part in the tower's pass"
    assert not any(one.any() for one in gradients if one is not None)


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("build", [qwen2_5_vl, small_glm4v])
def test_pictures_stand_at_their_places(build: Callable[[], tuple[Any, Any]]) -> None:
    module, model = build()
    vision = model.config.vision_config
    pixels = torch.randn(16, vision.in_channels * vision.temporal_patch_size * vision.patch_size**2)
    grid = torch.tensor([[1, 4, 4]])
    ids = torch.tensor([[7, *[model.config.image_token_id] * 4, 8]])
    patches.mend_models()  # again
    embeddings, _ = module._get_input_embeds(model, ids, pixel_values=pixels, image_grid_thw=grid)
    seen = model.visual(pixels, grid_thw=grid)
    assert torch.equal(embeddings[0, 1:5], seen.pooler_output), "the tower itself returns what it did"
    assert torch.equal(embeddings[0, ::5], model.get_input_embeddings()(ids)[0, ::5])


@pytest.mark.skipif(find_spec("flash_attn") is not None, reason="flash-attn is installed")
@pytest.mark.usefixtures("mended")
def test_attention_is_transformers_own_without_flash_attn() -> None:
    for module, own in ((qwen2_vl, Qwen2_5_VLAttention), (glm4v, Glm4vTextAttention)):
        assert not hasattr(module, "_flash_use_top_left_mask"), "verl's attention reads it"
        name = next(name for changed, name in CHANGED if changed is module and name.endswith("_attn_forward"))
        assert getattr(module, name) is own.forward


@pytest.mark.parametrize("is_mended", [False, True])
def test_rows_of_one_length(is_mended: bool, request: pytest.FixtureRequest) -> None:
    """If verl's own function raises no error, drop ``patches.split_positions``."""
    if is_mended:
        request.getfixturevalue("mended")
    positions = torch.nested.as_nested_tensor([torch.arange(3).repeat(4, 1)] * 2, layout=torch.jagged)
    data = TensorDict({"position_ids": positions}, batch_size=[2])
    engine_base.maybe_fix_3d_position_ids(data)
    if is_mended:
        data = tu.index_select_tensor_dict(data, [1])
        assert [row.tolist() for row in data["position_ids"].unbind()] == [[[0, 1, 2]] * 4]
    else:
        with pytest.raises(RuntimeError):
            tu.index_select_tensor_dict(data, [1])
