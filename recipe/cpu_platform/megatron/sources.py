"""An import hook that compiles Megatron and mbridge with the CPU in place of CUDA.

Both write ``torch.cuda.current_device()``, ``device="cuda"``, ``.cuda()`` and ``'torch.cuda.FloatTensor'`` into a
hundred places, and have no setting for another device. The hook changes these four in the syntax tree, so that line
numbers stay, and keeps the bytecode beside Python's own under another name.
"""

import ast
import hashlib
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import torch

from recipe.cpu_platform import device

PACKAGES = ("megatron", "mbridge")
NAME = "cpu_device"  # what `torch.cuda` is called in the compiled code
BYTECODE = f".{NAME}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]}.pyc"


class CpuDevice:
    """What ``torch.cuda`` is to Megatron's sources."""

    random = device

    @staticmethod
    def current_device() -> str:
        """Return "cpu": it is used as the device of new tensors."""
        return "cpu"

    @staticmethod
    def is_available() -> bool:
        """Return False: what asks wants the properties of a GPU."""
        return False

    def __getattr__(self, name: str) -> Any:
        """Look up every other name; a name that only annotations use, such as ``Event``, is torch's own."""
        return getattr(device if hasattr(device, name) else torch.cuda, name)


CPU_DEVICE = CpuDevice()


class OnCpu(ast.NodeTransformer):
    """A change of a syntax tree: code for CUDA becomes code for the CPU."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Replace ``torch.cuda`` by a name that stands for the CPU."""
        self.generic_visit(node)
        if node.attr == "cuda" and isinstance(node.value, ast.Name) and node.value.id == "torch":
            return ast.copy_location(ast.Name(NAME, ast.Load()), node)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace the device ``cuda`` by ``cpu``, and the types of its tensors by types of the CPU."""
        if node.value == "cuda":
            node.value = "cpu"
        elif isinstance(node.value, str) and node.value.startswith("torch.cuda.") and node.value.endswith("Tensor"):
            node.value = node.value.replace(".cuda", "")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Leave out ``.cuda()`` and pinned memory, which needs an accelerator."""
        self.generic_visit(node)
        node.keywords = [keyword for keyword in node.keywords if keyword.arg != "pin_memory"]
        return node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" else node


class Loader(importlib.machinery.SourceFileLoader):
    """A loader of source files whose code runs on the CPU."""

    def source_to_code(self, data: Any, path: Any, *, _optimization: int = -1) -> CodeType:  # type: ignore[override]
        """Compile the changed syntax tree."""
        tree = ast.fix_missing_locations(OnCpu().visit(ast.parse(data)))
        return compile(tree, path, "exec", dont_inherit=True, optimize=_optimization)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        setattr(module, NAME, CPU_DEVICE)
        super().exec_module(module)

    def get_data(self, path: str) -> bytes:
        """Return the bytes of a source file, or the bytecode of the changed source, which has another name."""
        return super().get_data(path.replace(".pyc", BYTECODE))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write the bytecode of the changed source."""
        super().set_data(path.replace(".pyc", BYTECODE), data, _mode=_mode)


class Finder:
    """A finder of the packages' modules, which uses this module's loader for them."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Return Python's own spec with this module's loader."""
        if name.partition(".")[0] not in PACKAGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(name, spec.loader.path)
        return spec


def install() -> None:
    """Load the packages so from now on; a second call changes nothing."""
    if Finder not in sys.meta_path:
        imported = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
        assert not imported, f"imported for GPUs before: {imported}"
        sys.meta_path.insert(0, Finder)
