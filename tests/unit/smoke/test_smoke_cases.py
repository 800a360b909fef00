"""Every case of the smoke test is a config that a node with its GPUs can run."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from other_device import NUM_DEVICES, Ascend
from verl.plugin.platform import platform_manager
from verl.plugin.platform.platform_cuda import PlatformCUDA

from recipe.online_refiner import config, main
from recipe.preflight.attention import chosen_attention
from recipe.smoke import command
from recipe.smoke.cases import CASES
from recipe.smoke.letters import NUM_PROMPTS, save_llama, save_prompts

CONFIG = Path(str(config.__file__)).parent


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the command writes before the first case."""
    folder = tmp_path_factory.mktemp("smoke")
    save_prompts(folder / "prompts.parquet")
    save_llama(folder / "model", hidden_size=128, intermediate_size=256)
    return folder


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let verl look for NVIDIA's GPUs, as where the CPU platform is not chosen."""
    monkeypatch.setattr(platform_manager, "_current_platform", PlatformCUDA())


@pytest.mark.parametrize("num_gpus", [1, 2, 4, 6, 8])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_node_with_so_many_gpus_can_run_it(
    case: Any, num_gpus: int, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if num_gpus < case.min_gpus:
        pytest.skip("the command leaves it out and says so")
    monkeypatch.setattr("torch.cuda.device_count", lambda: num_gpus)
    monkeypatch.setattr("recipe.preflight.machine.get_num_cpus", lambda: 2 + 3 * num_gpus)
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("online_refiner", overrides=case.command(output, platform="gpu", num_gpus=num_gpus))
    assert f"{config.trainer.n_gpus_per_node} cuda workers" in main.prepare(config)
    num_prompts = config.data.train_batch_size
    assert num_prompts <= NUM_PROMPTS and num_prompts == config.actor_rollout_ref.actor.ppo_mini_batch_size
    rows = num_prompts * config.actor_rollout_ref.rollout.n / config.trainer.n_gpus_per_node
    assert rows % config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 0


def test_a_node_with_devices_of_another_kind_can_run_it(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted by verl, and no rule for CUDA holds: allocator and attention stay as they are."""
    monkeypatch.setattr(platform_manager, "_current_platform", Ascend())
    monkeypatch.setattr("recipe.preflight.machine.get_num_cpus", lambda: 2 + 3 * NUM_DEVICES)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    case = next(case for case in CASES if case.min_gpus <= NUM_DEVICES)
    for num_devices in (NUM_DEVICES, NUM_DEVICES + 1):
        with initialize_config_dir(str(CONFIG), version_base=None):
            config = compose("online_refiner", overrides=case.command(output, platform="gpu", num_gpus=num_devices))
        if num_devices > NUM_DEVICES:
            with pytest.raises(ValueError, match=f"this machine has {NUM_DEVICES} .*machine-has-the-workers"):
                main.prepare(config)
            continue
        assert f"{NUM_DEVICES} npu workers" in main.prepare(config)
        assert chosen_attention(config.actor_rollout_ref.model) is None
        assert config.actor_rollout_ref.model.external_lib is None


def test_where_no_gpu_can_be_seen_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.argv", ["smoke", "--output", str(tmp_path)])
    with pytest.raises(SystemExit, match="no GPU here; --platform cpu"):
        command.main()
    assert not list(tmp_path.iterdir())
