"""Megatron on the CPU: each bridge against what it bridges. They fail when Megatron or verl changes under it."""

import ast
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recipe.cpu_platform import activate
from recipe.cpu_platform.megatron import bridges, sources

assert activate.activate
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def layers() -> Any:
    """Return the stand-ins, Megatron loaded for the CPU."""
    bridges.apply()
    bridges.apply()  # a second call changes nothing
    from recipe.cpu_platform.megatron import layers

    return layers


def run(source: str) -> dict[str, Any]:
    """Run a piece of code as Megatron's is run."""
    found = {sources.NAME: sources.CPU_DEVICE, "torch": torch}
    exec(compile(ast.fix_missing_locations(sources.OnCpu().visit(ast.parse(source))), "megatron", "exec"), found)
    return found


@pytest.mark.parametrize(
    "source",
    [
        'x = torch.zeros(2, device="cuda")',
        "x = torch.zeros(2, device=torch.cuda.current_device())",
        "x = torch.zeros(2).cuda(non_blocking=True)",
        'x = torch.tensor([0.0, 0.0], device="cpu", pin_memory=True).cuda(torch.cuda.current_device())',
    ],
)
def test_what_is_written_for_gpus_runs_on_the_cpu(source: str) -> None:
    with pytest.raises((RuntimeError, AssertionError)):
        exec(source, {"torch": torch})
    assert torch.equal(run(source)["x"], torch.zeros(2))


def test_types_of_tensors_and_unknown_names_are_the_cpus() -> None:
    assert run("x = torch.zeros(2).type() == 'torch.cuda.FloatTensor'")["x"] is True
    assert run("def f(event: torch.cuda.Event): pass\ntorch.cuda.synchronize()")["f"]
    assert run("x = 'cuda graph', {'cuda': 1}")["x"] == ("cuda graph", {"cpu": 1})


WHO_IMPORTS = """
import sys
import verl.workers.engine
from recipe.cpu_platform.megatron import engine
from verl.workers.engine import EngineRegistry
assert verl.workers.engine.MegatronEngine is None
assert not [name for name in sys.modules if name.startswith(("megatron.", "mbridge."))]
deferred = EngineRegistry.get_engine_cls("language_model", "megatron")
try:
    deferred(model_config=None, engine_config=None, optimizer_config=None, checkpoint_config=None)
except AttributeError as error:
    print(error)
assert "megatron.core.tensor_parallel" in sys.modules and "verl.workers.engine.megatron" in sys.modules
import megatron.core.optimizer.optimizer as optimizer
assert isinstance(optimizer.__loader__, sys.modules["recipe.cpu_platform.megatron.sources"].Loader)
"""


def test_megatron_is_imported_where_an_engine_is_built_and_nowhere_else() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WHO_IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "use_mbridge" in done.stdout  # the first thing that verl's engine reads


@pytest.mark.parametrize("name", list(bridges.REQUIRED_VERSIONS))
def test_any_other_version_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bridges.REQUIRED_VERSIONS, name, "0.0.1")
    with pytest.raises(RuntimeError, match=rf"written for {name} 0\.0\.1"):
        bridges.apply()


def test_verl_still_refuses_float32_and_nothing_else_is_let_through() -> None:
    from verl.workers.config import McoreEngineConfig

    from recipe.cpu_platform.megatron.engine import CpuEngineConfig

    with pytest.raises(AssertionError, match="dtype float32"):
        McoreEngineConfig(dtype="float32")
    assert CpuEngineConfig(dtype="float32").dtype == "float32"
    assert not CpuEngineConfig(dtype="float32").sequence_parallel  # what verl sets for one rank
    with pytest.raises(AssertionError, match="dtype int8"):
        CpuEngineConfig(dtype="int8")


def test_the_generators_state_is_set_which_stock_megatron_would_not(layers: Any) -> None:
    from megatron.core.tensor_parallel import random

    state = random._get_cuda_rng_state()
    first = torch.rand(3)
    random._set_cuda_rng_state(state)
    assert torch.equal(torch.rand(3), first)


def settings(**others: Any) -> SimpleNamespace:
    defaults = {"normalization": "RMSNorm", "layernorm_zero_centered_gamma": False, "params_dtype": torch.float32}
    defaults |= {"sequence_parallel": True, "attention_dropout": 0.0, "kv_channels": 4, "context_parallel_size": 1}
    return SimpleNamespace(**{**defaults, **others})


def test_the_norm_is_root_mean_square_and_its_gradient_is_summed_over_ranks(layers: Any) -> None:
    norm, x = layers.Norm(settings(), 8, eps=1e-3), torch.randn(3, 8)
    torch.testing.assert_close(norm(x), x / (x.pow(2).mean(-1, keepdim=True) + 1e-3).sqrt())
    assert norm.weight.sequence_parallel
    with pytest.raises(NotImplementedError, match="RMSNorm"):
        layers.Norm(settings(normalization="LayerNorm"), 8)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return plain causal attention of (tokens, heads, size), two query heads for each key head."""
    rows = []
    for t in range(len(query)):
        heads = []
        for head in range(query.shape[1]):
            weights = (key[: t + 1, head // 2] @ query[t, head] / math.sqrt(query.shape[-1])).softmax(0)
            heads.append(weights @ value[: t + 1, head // 2])
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def test_attention_of_packed_and_of_padded_rows(layers: Any) -> None:
    core, lengths = layers.Attention(settings(), softmax_scale=None, layer_number=1), (3, 1, 5)
    query, key, value = torch.randn(9, 4, 4), torch.randn(9, 2, 4), torch.randn(9, 2, 4)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    packed = core(query, key, value, None, packed_seq_params=SimpleNamespace(cu_seqlens_q=ends))
    parts = zip(query.split(lengths), key.split(lengths), value.split(lengths), strict=True)
    torch.testing.assert_close(packed, torch.cat([attention(*part) for part in parts]))
    padded = core(query[:, None], key[:, None], value[:, None], None, packed_seq_params=None)
    torch.testing.assert_close(padded[:, 0], attention(query, key, value))
    with pytest.raises(NotImplementedError, match="dropout"):
        layers.Attention(settings(attention_dropout=0.1))


@pytest.mark.parametrize(
    ("module_file", "symbol", "expected"),
    [
        ("verl/workers/config/engine.py", "McoreEngineConfig", "aae954819c88"),
        ("verl/workers/engine/base.py", "EngineRegistry", "54452eee1279"),
        ("verl/workers/engine/megatron/utils.py", "set_random_seed", "0e62e70440a1"),
        ("megatron/core/tensor_parallel/random.py", "_get_cuda_rng_state", "0c2b8f05b864"),
        ("megatron/core/tensor_parallel/random.py", "_set_cuda_rng_state", "dea947ca0b7d"),
        ("megatron/core/tensor_parallel/random.py", "CudaRNGStatesTracker", "d30430fec1ac"),
        ("megatron/core/tensor_parallel/layers.py", "ColumnParallelLinear", "1bdad2a9930e"),
        ("megatron/core/models/backends.py", "LocalSpecProvider", "1671ebf8fa87"),
        ("megatron/core/extensions/transformer_engine_spec_provider.py", "TESpecProvider", "a02a96056de2"),
        ("megatron/core/models/gpt/gpt_layer_specs.py", "get_gpt_layer_with_transformer_engine_spec", "15eb8848f25b"),
        ("megatron/core/models/gpt/gpt_layer_specs.py", "get_gpt_decoder_block_spec", "0fa0e2d15e04"),
        ("megatron/core/transformer/transformer_block.py", "_get_block_submodules", "a3739b656fdf"),
        ("megatron/core/transformer/attention.py", "Attention.forward", "f4d3e149657c"),
        ("mbridge/core/llm_bridge.py", "LLMBridge", "cb5e7149baf3"),
    ],
)
def test_upstream_source_is_the_one_that_was_read(
    source_hash: Callable, module_file: str, symbol: str, expected: str
) -> None:
    assert source_hash(module_file, symbol) == expected, f"read {module_file}:{symbol} again, then update this hash"


def test_a_distributed_optimizer_without_a_step_is_loaded_and_each_parameter_has_its_own_step(layers: Any) -> None:
    """Stock Megatron has neither: once it does, it has mended what is patched here."""
    import inspect

    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    stock = {
        name: inspect.getclosurevars(getattr(DistributedOptimizer, name)).nonlocals[name]
        for name in ("state_dict", "load_state_dict")
    }
    assert "assert len(steps) == 1" in inspect.getsource(stock["state_dict"])
    assert 's["step"] = step\n' in inspect.getsource(stock["load_state_dict"])
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = SimpleNamespace(optimizer=torch.optim.AdamW(parameters), grad_scaler=None)
    with pytest.raises(AssertionError):
        stock["state_dict"](optimizer)
    DistributedOptimizer.state_dict(optimizer)
    assert [optimizer.optimizer.state[one]["step"].item() for one in parameters] == [0, 0]
    for one in parameters:
        one.grad = torch.ones(2)
    optimizer.optimizer.step()
    assert DistributedOptimizer.state_dict(optimizer)["optimizer"]["param_groups"][0]["step"] == 1


@pytest.fixture
def one_rank(layers: Any, tmp_path: Path) -> Iterator[None]:
    from megatron.core import parallel_state

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def trained(gradients: list[torch.Tensor]) -> tuple[torch.nn.Parameter, Any]:
    """Return a parameter and its distributed optimizer, both after a step with each gradient."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.transformer import TransformerConfig

    module = torch.nn.Linear(3, 2, bias=False)
    torch.nn.init.ones_(module.weight)
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), module)
    settings = OptimizerConfig(optimizer="adam", lr=0.1, use_distributed_optimizer=True, clip_grad=0.0)
    optimizer = get_megatron_optimizer(settings, [model])
    for gradient in gradients:
        step(module.weight, optimizer, gradient)
    return module.weight, optimizer


def step(parameter: Any, optimizer: Any, gradient: torch.Tensor) -> None:
    parameter.main_grad.copy_(gradient)
    assert optimizer.step()[0]


@pytest.mark.parametrize("sharding", ["dp_reshardable", "fully_reshardable"])  # the two that verl can save
def test_an_optimizer_that_is_loaded_goes_on_as_the_one_that_was_saved(
    one_rank: None, sharding: str, tmp_path: Path
) -> None:
    from megatron.core.dist_checkpointing import ShardedTensor
    from verl.utils.megatron.dist_checkpointing import load_dist_checkpointing, save_dist_checkpointing

    def state_of(parameter: torch.nn.Parameter, optimizer: Any, is_loading: bool) -> dict[str, Any]:
        model = {"weight": ShardedTensor.from_rank_offsets("weight", parameter)}
        metadata = {"distrib_optim_sharding_type": sharding, "distrib_optim_fully_reshardable_mem_efficient": False}
        return {"optimizer": optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=metadata)}

    first, second, third = torch.randn(3, 2, 3).unbind()
    whole, optimizer = trained([first, second])
    (tmp_path / "saved").mkdir()
    save_dist_checkpointing(state_of(whole, optimizer, is_loading=False), str(tmp_path / "saved"))
    step(whole, optimizer, third)

    resumed, optimizer = trained([])
    loaded = load_dist_checkpointing(state_of(resumed, optimizer, is_loading=True), str(tmp_path / "saved"))
    optimizer.load_state_dict(loaded["optimizer"])
    step(resumed, optimizer, third)
    torch.testing.assert_close(resumed, whole, rtol=0, atol=0)
