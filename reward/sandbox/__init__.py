"""Isolated runs of programs that a model wrote, and how each of them ended."""

from reward.sandbox.execution import Execution, Program
from reward.sandbox.jail.values import arguments_text, from_text
from reward.sandbox.local import Sandbox, shared_sandbox

__all__ = ["Execution", "Program", "Sandbox", "arguments_text", "from_text", "shared_sandbox"]
