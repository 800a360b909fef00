"""Megatron on the CPU: each bridge against what it bridges."""

import ast
import subprocess
import sys
from pathlib import Path
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


@pytest.mark.slow
def test_megatron_is_imported_where_an_engine_is_built_and_nowhere_else() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WHO_IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "use_mbridge" in done.stdout  # the first thing that verl's engine reads


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
