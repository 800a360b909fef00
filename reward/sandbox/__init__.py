"""Runs programs written by a model: what isolates them, and what says how each ended."""

from reward.sandbox.config import SandboxConfig, shared_sandbox
from reward.sandbox.execution import Execution, Program, Sandbox
from reward.sandbox.jail.values import arguments_text, from_text
from reward.sandbox.local import LocalSandbox

__all__ = [
    "Execution",
    "LocalSandbox",
    "Program",
    "Sandbox",
    "SandboxConfig",
    "arguments_text",
    "from_text",
    "shared_sandbox",
]
