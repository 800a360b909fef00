"""Runs programs written by a model: what isolates them, and what says how each ended."""

from reward.sandbox.config import SandboxConfig, shared_sandbox
from reward.sandbox.execution import Execution, Program, Sandbox
from reward.sandbox.local import LocalSandbox

__all__ = ["Execution", "LocalSandbox", "Program", "Sandbox", "SandboxConfig", "shared_sandbox"]
