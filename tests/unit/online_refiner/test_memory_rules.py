"""Sizes that cannot fit are refused before Ray starts, with the key to set; without the mistake they pass."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from checked_run import checked, error_of
from composed_main import composed
from omegaconf import DictConfig
from sparse_weights import write_sparse

QWEN_7B = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
ROLLOUT, FSDP = "actor_rollout_ref.rollout", "actor_rollout_ref.actor.fsdp_config"
GOOD = {"inputs": ["1\n"], "outputs": ["2\n"]}


@pytest.fixture
def run_of_7b(
    tiny_llama: Path, tmp_path: Path, write: Callable, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., DictConfig]:
    """Return a function that composes a run with a 7B model on a cluster whose GPUs have 80 GiB."""
    model = tmp_path / "model"
    shutil.copytree(tiny_llama, model)
    write_sparse(model, QWEN_7B)
    data = write(tmp_path / "good.parquet", [GOOD] * 4)
    monkeypatch.setenv("RAY_ADDRESS", "a cluster of GPUs")

    def compose(*overrides: str) -> DictConfig:
        return composed(
            f"actor_rollout_ref.model.path={model}",
            f"data.train_files={data}",
            f"data.val_files={data}",
            "data.train_batch_size=4",
            "sizing.gpu_memory_gib=80",
            "data.max_response_length=2048",
            "reward.custom_reward_function.path=pkg://reward.verl_reward",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
            *overrides,
        )

    return compose


@pytest.mark.parametrize(
    ("settings", "mistake", "words"),
    [
        ((), f"{ROLLOUT}.gpu_memory_utilization=0.08", ("the rollout's weights", f"{ROLLOUT}.gpu_memory_utilization=")),
        ((), "refiner.rollout={gpu_memory_utilization: 0.08}", ("the refiner's weights", "refiner.rollout.gpu_")),
        ((), f"{ROLLOUT}.gpu_memory_utilization=0.095", (f"{ROLLOUT}.max_model_len: ",)),
        (
            ("refiner.max_model_len=16384",),
            "refiner.rollout={gpu_memory_utilization: 0.09}",
            ("refiner.max_model_len: ", "16384"),
        ),
        (
            ("refiner.rollout={gpu_memory_utilization: 0.6}",),
            f"{ROLLOUT}.free_cache_engine=false",
            ("1.10 of a GPU", f"{ROLLOUT}.free_cache_engine=true"),
        ),
        (
            (f"{ROLLOUT}.tensor_model_parallel_size=1",),
            "trainer.n_gpus_per_node=1",
            ("113.5 GiB of a training GPU with 80 (Adam 56.7, parameters 28.4, gradients 28.4)",),
        ),
        (
            (f"{FSDP}.optimizer_offload=true", "trainer.n_gpus_per_node=2"),
            f"{FSDP}.optimizer_offload=false",
            ("actor's state 42.6, rollout's engine 40.0", f"{FSDP}.param_offload"),
        ),
        (
            ("trainer.n_gpus_per_node=4",),
            "refiner.rollout={gpu_memory_utilization: 0.8}",
            ("set refiner.rollout.gpu_memory_utilization",),
        ),
    ],
)
def test_what_cannot_fit(
    run_of_7b: Callable[..., DictConfig], settings: tuple[str, ...], mistake: str, words: tuple[str, ...]
) -> None:
    checked(run_of_7b(*settings))
    found = error_of(run_of_7b(*settings, mistake))
    assert all(one in found for one in words) and found.endswith(" [memory-is-there]")


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("data.max_response_length=32768", "policy-reads-prompt-and-response"),
        (f"{ROLLOUT}.max_model_len=65536", "policy-reads-prompt-and-response"),
        (f"{ROLLOUT}.max_model_len=256", "policy-reads-prompt-and-response"),
        ("actor_rollout_ref.actor.fsdp_config.model_dtype=half", "memory-is-there"),
    ],
)
def test_what_the_model_is_not_made_for(run_of_7b: Callable[..., DictConfig], mistake: str, rule: str) -> None:
    assert error_of(run_of_7b(mistake)).endswith(f" [{rule}]")


@pytest.mark.parametrize("gpu", ["sizing.gpu_memory_gib=null", "sizing.gpu_memory_gib=200"])
def test_nothing_is_refused_of_a_machine_that_is_not_known_or_large(
    run_of_7b: Callable[..., DictConfig], gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    found = checked(run_of_7b(f"{ROLLOUT}.tensor_model_parallel_size=1", "trainer.n_gpus_per_node=1", gpu))
    text = found.plan.describe(found.config, found.blocks, 4)
    assert "memory of a training GPU, GiB" in text


def test_a_model_of_an_unknown_family_is_not_refused(run_of_7b: Callable[..., DictConfig]) -> None:
    config = run_of_7b(f"{ROLLOUT}.tensor_model_parallel_size=1", "trainer.n_gpus_per_node=1")
    assert "training needs" in error_of(config)
    gemma = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
    write_sparse(Path(config.actor_rollout_ref.model.path), QWEN_7B | gemma)
    found = checked(config)
    assert "may not fit" in found.plan.describe(found.config, found.blocks, 4)


@pytest.mark.parametrize("is_alike", [True, False])
def test_a_plan_has_a_critic_of_any_model(
    run_of_7b: Callable[..., DictConfig], tiny_llama: Path, tmp_path: Path, is_alike: bool
) -> None:
    critic = tmp_path / "model" if is_alike else tiny_llama
    found = checked(
        run_of_7b(
            "algorithm.adv_estimator=gae",
            f"critic.model.path={critic}",
            "critic.ppo_micro_batch_size_per_gpu=1",
            "trainer.n_gpus_per_node=16",
        )
    )
    (moment,) = (one for one in found.plan.footprint(found.config, found.blocks).moments if "critic" in one.name)
    parameters = next(part.size for part in moment.parts if part.name == "parameters")
    assert (parameters == 4 * 7_615_616_512 / 16) is is_alike and parameters > 0


def test_a_dry_run_that_names_its_gpus_needs_none_here(
    run_of_7b: Callable[..., DictConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = run_of_7b("dry_run=true")
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert checked(config).plan.num_gpus == config.trainer.n_gpus_per_node
    config.dry_run = False
    assert error_of(config).endswith(" [machine-has-the-workers]")
