"""What a person sees of a run: verl's log, or what it does now, a line for each part and step, and an end.

The progress view only reads the run directory, so it cannot disturb the run.
"""

import contextlib
import difflib
import heapq
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import psutil
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from recipe.runs.files import RunDir, objects_of, read_rows, refinement_lines

if TYPE_CHECKING:
    from recipe.report.reading import Arm

POLL_S = 0.5
LOG_WIDTH = 120
"""Columns where the output is no terminal."""
NUM_COMPARED = 200
"""Accepted refinements, the last ones, of which the two with the smallest edits are shown."""
NUM_RECENT = 10
"""Steps whose mean time says how long the others take."""


def part(name: str) -> str:
    """Return the line of a part of the start, with minutes and seconds since the command was given."""
    seconds = int(time.time() - psutil.Process().create_time())  # also of what restarted itself
    return f"{seconds // 60:3}:{seconds % 60:02}  {name}"


def begin(config: DictConfig, name: str) -> None:
    """Print a part that begins before :data:`CONSOLES` are there, where the console is to show it."""
    if config.console == "progress" and not config.dry_run:
        print(part(name), flush=True)


@contextlib.contextmanager
def _progress(config: DictConfig) -> Iterator[None]:
    """Show the run while the block runs; what this process prints goes to ``driver.log``, workers' to Ray's files."""
    run_dir = RunDir(config.run_dir)
    run_dir.stage.unlink(missing_ok=True)
    with open_dict(config):
        config.ray_kwargs.ray_init.update(log_to_driver=False, logging_level=30)
    with _alone_at_the_terminal(run_dir.path / "driver.log") as terminal:
        console = Console(file=terminal, highlight=False, width=None if terminal.isatty() else LOG_WIDTH)
        console.print(f"run directory: {run_dir.path}", markup=False, soft_wrap=True)
        from recipe.report.findings import facts

        console.print(facts(_arm_of(config)), markup=False, soft_wrap=True)
        view, stop = View(console, run_dir, config.trainer.total_training_steps), threading.Event()
        watcher = threading.Thread(target=_watch, args=(view, stop))
        watcher.start()
        before = _steps(run_dir)
        try:
            yield
        except BaseException:
            console.print(f"what it printed: {run_dir.path}/driver.log", markup=False, soft_wrap=True)
            if _steps(run_dir):
                console.print(f"its page: online-refiner report {run_dir.path}", markup=False, soft_wrap=True)
            raise
        finally:
            stop.set()
            watcher.join()
        if before and _steps(run_dir) == before:
            console.print("no step was left to do: set a higher trainer.total_training_steps, or another run_dir")
        print_summary(console, run_dir, config)


@contextlib.contextmanager
def _log(config: DictConfig) -> Iterator[None]:
    """Leave all to verl, and say at the end what the numbers say."""
    yield
    from recipe.report.findings import advice

    print(*advice(_arm_of(config)), sep="\n")


def _arm_of(config: DictConfig) -> "Arm":
    from recipe.report.reading import Arm, Run

    settings: Any = OmegaConf.to_container(config, resolve=True)
    run = Run(path=config.run_dir, config=settings, steps=_steps(RunDir(config.run_dir)))
    return Arm(name=config.run_dir, runs=[run])


CONSOLES: dict[str, Callable[[DictConfig], contextlib.AbstractContextManager[None]]] = {
    "log": _log,
    "progress": _progress,
}


@contextlib.contextmanager
def _alone_at_the_terminal(log: Path) -> Iterator[TextIO]:
    """Yield the standard output, to which nothing else writes: descriptors 1 and 2 lead to a file meanwhile.

    Handlers of loggers, and Ray's own code, hold what ``sys.stderr`` was when they were made.
    """
    streams = (sys.stdout, sys.stderr)
    old = [os.dup(number) for number in (1, 2)]
    with log.open("ab") as file, open(os.dup(1), "w", encoding="utf-8") as terminal:
        for number, stream in enumerate(streams, start=1):
            stream.flush()
            os.dup2(file.fileno(), number)
        try:
            yield terminal
        finally:
            for number, stream in enumerate(streams, start=1):
                stream.flush()
                os.dup2(old[number - 1], number)
                os.close(old[number - 1])


class View:
    """Parts of the start and finished steps as lines; on a terminal a bar below them, with what the run does now."""

    def __init__(self, console: Console, run_dir: RunDir, num_steps: int | None) -> None:
        """Begin with the part that comes before the trainer can say anything."""
        self._console, self._run_dir = console, run_dir
        self._num_steps = num_steps
        self._stage: dict[str, Any] = {"stage": "starting Ray", "step": 0, "since": time.time()}
        self._steps = _steps(run_dir)
        self._shown = [step["step"] for step in self._steps]
        self._changed_at = 0.0  # metrics.jsonl
        texts = [TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[left]")]
        self.bar = Progress(
            SpinnerColumn(),
            texts[0],
            BarColumn(),
            texts[1],
            console=console,
            disable=not console.file.isatty(),
            transient=True,
            redirect_stdout=False,  # what is printed has its file
            redirect_stderr=False,
        )
        self._task = self.bar.add_task("starting Ray", total=None, left="")
        self._say(part("starting Ray"))

    def look(self) -> None:
        """Show what is new in the run directory."""
        stage = self._run_dir.read_stage() or self._stage
        if stage["stage"] != self._stage["stage"] and not stage["step"]:
            self._say(part(stage["stage"]))
        self._stage, self._num_steps = stage, stage.get("num_steps") or self._num_steps
        self._show_steps()
        self._update_bar()

    def _show_steps(self) -> None:
        metrics = self._run_dir.metrics
        changed_at = metrics.stat().st_mtime if metrics.exists() else 0.0
        if changed_at == self._changed_at:
            return
        self._changed_at, self._steps = changed_at, _steps(self._run_dir)
        numbers = [step["step"] for step in self._steps]
        if len(numbers) < len(self._shown):  # a resumed run does the others again
            self._shown = numbers
        for number, step in enumerate(self._steps):
            if step["step"] not in self._shown:
                left = time_left(self._steps[: number + 1], self._num_steps)
                self._say(step_line(step, self._num_steps) + (f"  {left}" if left and self.bar.disable else ""))
                self._shown.append(step["step"])

    def _update_bar(self) -> None:
        step, waited = self._stage["step"], time.time() - self._stage["since"]
        what = f"step {step}/{self._num_steps or '?'}: {self._stage['stage']}" if step else self._stage["stage"]
        self.bar.update(
            self._task,
            description=f"{what}, {waited:.0f} s",
            total=self._num_steps if step else None,
            completed=self._shown[-1] if self._shown and step else 0,
            left=time_left(self._steps, self._num_steps, time.time() - self._changed_at) if step else "",
        )

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


def _watch(view: View, stop: threading.Event) -> None:
    with view.bar:
        running = True
        while running:
            running = not stop.wait(POLL_S)
            view.look()


def _steps(run_dir: RunDir) -> list[dict[str, Any]]:
    return list(read_rows(run_dir.metrics)) if run_dir.metrics.exists() else []


def time_left(steps: list[dict[str, Any]], num_steps: int | None, passed_s: float = 0.0) -> str:
    """Return in words how long the steps to come take, if they take as long as the last ones; empty: not known.

    The first step counts only while it is the only one.

    Args:
        steps: Metrics of those that are done.
        num_steps: Of the run.
        passed_s: Seconds since the last one.
    """
    if not steps or not num_steps or steps[-1]["step"] >= num_steps:
        return ""
    recent = [step["timing_s/step"] for step in steps[1:][-NUM_RECENT:] or steps]  # in the first one engines warm up
    seconds = sum(recent) / len(recent)
    return in_words(seconds * (num_steps - steps[-1]["step"]) - min(passed_s, seconds))


def in_words(seconds: float) -> str:
    """Return a time that is left in words."""
    if seconds > 2 * 3600:
        return f"about {seconds / 3600:.1f} h left"
    return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"


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
    """Print two accepted refinements as diffs, what the page says of the run, where all is, and what to do next."""
    steps = _steps(run_dir)
    if not steps:
        return
    rows = objects_of(refinement_lines(run_dir.path, config.records.path))
    latest = deque((row for row in rows if row["verdict"] == "accepted"), maxlen=NUM_COMPARED)
    for row in heapq.nsmallest(2, latest, key=_size_of_edit):  # of what is much changed, the reason is hard to see
        title = f"step {row['step']}, accepted: reward {row['reward']:+.2f} -> {row['refined_reward']:+.2f}"
        console.print(Panel(_diff(row), title=title, title_align="left"))
    for line in _what_next(run_dir):
        console.print(line, markup=False, soft_wrap=True)  # paths stay whole


def _what_next(run_dir: RunDir) -> Iterator[str]:
    try:
        from recipe.report.findings import advice
        from recipe.report.page import write_page
        from recipe.report.reading import read_runs

        arms, page = read_runs([str(run_dir.path)]), run_dir.path / "report.html"
        page.write_bytes(write_page(arms))
        yield from advice(arms[0])
        yield f"run directory: {run_dir.path}"
        yield f"its page, for a browser (curves, every refinement, what to change): {page}"
    except Exception as error:  # whatever it is, the run has ended well
        yield f"its page could not be written ({error}): online-refiner report {run_dir.path}"
    yield "next: online-refiner check, on your own model and data; then online-refiner train on them (README.md)"


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
