"""Options of commands that run answers."""

import argparse
import os

from reward.sandbox import SandboxConfig


def add_sandbox_options(parser: argparse.ArgumentParser, *, test_s: float) -> None:
    """Add how long, how many at once and where programs run."""
    parser.add_argument("--workers", type=positive_int, default=os.cpu_count() or 1, help="programs run at once")
    parser.add_argument("--timeout", type=float, default=test_s, help="wall seconds of one test (default: %(default)s)")
    parser.add_argument("--sandbox-url", default="", help="run programs by the SandboxFusion service at this address")
    parser.add_argument(
        "--allow-unsafe", action="store_true", help="run programs even where the machine cannot isolate them"
    )


def sandbox_config(arguments: argparse.Namespace) -> SandboxConfig:
    """Return the sandbox that the options ask for."""
    return SandboxConfig(
        backend="remote" if arguments.sandbox_url else "local",
        url=arguments.sandbox_url,
        allow_unsafe=arguments.allow_unsafe,
        num_slots=arguments.workers,
    )


def positive_int(text: str) -> int:
    """Parse a number of at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    return value
