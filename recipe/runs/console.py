"""What a person sees of a run: verl's log, or one line a step and two refinements at the end.

The progress view only reads the run directory, so it cannot disturb the run.
"""

import contextlib
import difflib
import heapq
import shlex
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from omegaconf import DictConfig, open_dict
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from recipe.runs.advice import advice
from recipe.runs.files import Records, RunDir, objects_of, read_rows, refinement_lines

POLL_S = 1.0
LOG_WIDTH = 120
"""Columns where the output is no terminal."""
NUM_COMPARED = 200
"""Accepted refinements, the last ones, of which the two with the smallest edits are shown."""


@contextlib.contextmanager
def _progress(config: DictConfig) -> Iterator[None]:
    """Show one line a step while the block runs; the processes' own output goes to Ray's log files."""
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)
    run_dir = RunDir(config.run_dir)
    with open_dict(config):
        config.ray_kwargs.ray_init.update(log_to_driver=False, logging_level=30)
    console.print(f"run directory: {run_dir.path}")
    console.print("starting Ray, vLLM and the trainer: a minute or more before the first step ...")
    before, stop = _steps(run_dir), threading.Event()
    watcher = threading.Thread(target=_watch, args=(console, run_dir, config.trainer.total_training_steps, stop))
    watcher.start()
    try:
        with open(run_dir.path / "driver.log", "a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            yield
    finally:
        stop.set()
        watcher.join()
    if before and _steps(run_dir) == before:
        console.print("no step was left to do: set a higher trainer.total_training_steps, or another run_dir")
    print_summary(console, run_dir, config)


CONSOLES: dict[str, Callable[[DictConfig], contextlib.AbstractContextManager[None]]] = {
    "log": lambda config: contextlib.nullcontext(),
    "progress": _progress,
}


def _watch(console: Console, run_dir: RunDir, num_steps: int | None, stop: threading.Event) -> None:
    shown, running = [step["step"] for step in _steps(run_dir)], True
    while running:
        running = not stop.wait(POLL_S)
        steps = _steps(run_dir)
        numbers = [step["step"] for step in steps]
        if len(numbers) < len(shown):  # a resumed run does the others again
            shown = numbers
        for step in steps:
            if step["step"] not in shown:
                console.print(step_line(step, num_steps))
                shown.append(step["step"])


def _steps(run_dir: RunDir) -> list[dict[str, Any]]:
    return list(read_rows(run_dir.metrics)) if run_dir.metrics.exists() else []


def step_line(step: dict[str, Any], num_steps: int | None) -> str:
    """Return one step's metrics as one line."""
    num_rollouts = step["refiner/num_rollouts"]
    entropy = step.get("constraint/cross_entropy_accepted")
    parts = [
        f"step {step['step']:>2}/{num_steps or '?'}",
        f"reward {step['reward/mean']:+.3f}",
        f"refined {step['refiner/num_attempted']:.0f}/{num_rollouts:.0f}",
        f"accepted {step['refiner/num_accepted']:.0f}/{num_rollouts:.0f}",
        *([] if entropy is None else [f"cross-entropy {entropy:.2f}"]),  # mode sft measures it in some steps only
        *([_kl(step["kl_ref/k3"])] if "kl_ref/k3" in step else []),
        f"{step['timing_s/step']:.0f} s",
    ]
    return "  ".join(parts)


def _kl(value: float | None) -> str:
    return "KL unknown" if value is None else f"KL {value:.4f}"  # None: no replica of the reference model answered


def print_summary(console: Console, run_dir: RunDir, config: DictConfig) -> None:
    """Print two accepted refinements as diffs, the first and the last reward, where all is, and what to do next."""
    steps = _steps(run_dir)
    if not steps:
        return
    rows = objects_of(refinement_lines(run_dir.path, config.records.path))
    latest = deque((row for row in rows if row["verdict"] == "accepted"), maxlen=NUM_COMPARED)
    for row in heapq.nsmallest(2, latest, key=_size_of_edit):  # of what is much changed, the reason is hard to see
        title = f"step {row['step']}: reward {row['reward']:+.2f} -> {row['refined_reward']:+.2f}"
        console.print(Panel(_diff(row), title=title, title_align="left"))
    for line in [*_outcome(steps), *advice(steps, config), *_what_next(run_dir, config)]:
        console.print(line, markup=False, soft_wrap=True)  # paths stay whole


def _outcome(steps: list[dict[str, Any]]) -> Iterator[str]:
    first, last = steps[0], steps[-1]
    if last is not first:
        yield (
            f"mean reward {first['reward/mean']:+.3f} in step {first['step']}, {last['reward/mean']:+.3f} in step "
            f"{last['step']}: of {first['refiner/num_rollouts']:.0f} responses to other prompts each, so a noisy number"
        )


def _what_next(run_dir: RunDir, config: DictConfig) -> Iterator[str]:
    yield f"run directory: {run_dir.path}"
    yield f"numbers of each step: {run_dir.metrics}"
    if "://" not in config.records.path and (parts := Records(config.records.path).parts()):
        reads = f"python -m json.tool --json-lines --no-ensure-ascii {shlex.quote(parts[-1])}"
        yield f"every response with its refinement, in files such as this one: {reads}"
    yield "next: check your own model and data by online-refiner check, then train on them (README.md)"


def _size_of_edit(row: dict[str, Any]) -> int:
    """Return the number of characters in lines that a refinement takes out or adds."""
    old, new = row["response"].strip().splitlines(), row["refined"].strip().splitlines()
    edits = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changed = [[*old[a:b], *new[c:d]] for kind, a, b, c, d in edits if kind != "equal"]
    return sum(len(line) for lines in changed for line in lines)


def _diff(row: dict[str, Any]) -> Text:
    text = Text(row["prompt"][-1]["content"].strip() + "\n\n", style="dim")
    styles = {"-": "red", "+": "green"}
    for line in difflib.ndiff(row["response"].strip().splitlines(), row["refined"].strip().splitlines()):
        if not line.startswith("?"):
            text.append(line + "\n", style=styles.get(line[0], ""))
    return text
