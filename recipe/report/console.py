"""The view of a run on a terminal: verl's log, or its current stage, a line per part and step, and a summary.

The progress view only reads the run directory, so it cannot disturb the run.
"""

import contextlib
import difflib
import heapq
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import psutil
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from recipe.online_refiner import metric_names
from recipe.runs.files import Records, RunDir, objects_of

if TYPE_CHECKING:
    from recipe.report.reading import Arm

POLL_S = 0.5
QUIET_S = 60.0
"""The number of seconds without a new line after which an output that is no terminal names the stage of a step."""
LOG_WIDTH = 120
"""The number of columns if the output is no terminal."""
NUM_COMPARED = 200
"""The number of accepted refinements from which the one or two with the smallest edits are shown."""
SIGNS = {"-": "red", "+": "green"}
"""The colours of lines that a refinement removes or adds."""
CONTROL = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}
"""Control characters, which a terminal would obey, each with its replacement."""


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
        _say(console, f"run directory: {run_dir.path}")
        from recipe.report.findings import facts

        _say(console, facts(_arm_of(config)))
        view, stop = View(console, run_dir, config.trainer.total_training_steps), threading.Event()
        watcher = threading.Thread(target=_watch, args=(view, stop))
        watcher.start()
        before = run_dir.read_steps()
        try:
            yield
        except BaseException:
            _say(console, f"what it printed: {run_dir.path}/driver.log")
            if run_dir.read_steps():
                _say(console, f"its page: online-refiner report {run_dir.path}")
            raise
        finally:
            stop.set()
            watcher.join()
        if before and run_dir.read_steps() == before:
            _say(console, "no step was left to do: set a higher trainer.total_training_steps, or another run_dir")
        print_summary(console, run_dir)


def _say(console: Console, line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)  # paths stay whole


@contextlib.contextmanager
def _log(config: DictConfig) -> Iterator[None]:
    """Leave the output to verl, and print the findings at the end."""
    yield
    from recipe.report.findings import advice

    print(*advice(_arm_of(config)), sep="\n")


def _arm_of(config: DictConfig) -> "Arm":
    from recipe.report.reading import Arm, Run, flat

    settings: Any = OmegaConf.to_container(config, resolve=True)
    run = Run(path=config.run_dir, config=flat(settings), steps=RunDir(config.run_dir).read_steps())
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

    def lead(*files: TextIO) -> None:
        for number, (stream, file) in enumerate(zip((sys.stdout, sys.stderr), files, strict=True), start=1):
            with contextlib.suppress(OSError):  # the log's disk may be full: what is left is shown by the terminal
                stream.flush()
            os.dup2(file.fileno(), number)

    with (
        log.open("a") as file,
        open(os.dup(1), "w", encoding="utf-8", errors="backslashreplace") as terminal,
        open(os.dup(2), "w") as errors,
    ):
        lead(file, file)
        try:
            yield terminal
        finally:
            lead(terminal, errors)


class View:
    """Parts of the start and finished steps as lines, and the first refinement as a diff.

    On a terminal, a bar below them says what the run does now. Elsewhere a stage of a step that takes long is a line.
    """

    def __init__(self, console: Console, run_dir: RunDir, num_steps: int | None) -> None:
        """Begin with the part that comes before the trainer can say anything."""
        self._console, self._run_dir = console, run_dir
        self._num_steps = num_steps
        self._shows_refinement = False
        self._stage: dict[str, Any] = {"stage": "starting Ray", "step": 0, "since": time.time()}
        self._steps = run_dir.read_steps()
        self._num_shown = len(self._steps)
        self._changed_at = 0.0  # metrics.jsonl
        self._said, self._said_at = "starting Ray", time.time()
        self.bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=math.inf,  # a step may take minutes
            disable=not console.file.isatty(),
            transient=True,
            redirect_stdout=False,  # what is printed has its file
            redirect_stderr=False,
        )
        self._task = self.bar.add_task("starting Ray", total=None)
        _say(console, part("starting Ray"))

    def look(self) -> None:
        """Show what is new in the run directory."""
        self._stage = self._run_dir.read_stage() or self._stage
        self._num_steps = self._stage.get("num_steps") or self._num_steps
        metrics = self._run_dir.metrics
        changed_at = metrics.stat().st_mtime if metrics.exists() else 0.0
        if changed_at != self._changed_at:
            self._changed_at, self._steps = changed_at, self._run_dir.read_steps()
            self._show_steps()
        self._show_stage()
        self._update_bar()

    def _show_steps(self) -> None:
        first = min(self._num_shown, len(self._steps))  # a resumed run does the others again
        for step in self._steps[first:]:
            _say(self._console, step_line(step, self._num_steps))
            self._said_at = time.time()
            self._show_refinement(step["step"])
        self._num_shown = len(self._steps)

    def _show_refinement(self, step: int) -> None:
        """Show an accepted refinement of a step, unless one was shown."""
        if self._shows_refinement:
            return
        rows = objects_of(Records(f"{self._run_dir.path}/refinements").lines(step))
        for panel in panels((row for row in rows if row["verdict"] == "accepted"), 1):
            self._console.print(panel)
            self._shows_refinement = True

    def _show_stage(self) -> None:
        """Say what the run does: a part of the start at once, a stage of a step where nothing else was said for long.

        A terminal has the bar for the stages of a step.
        """
        what, is_quiet = self._what(), time.time() - self._said_at >= QUIET_S
        if what != self._said and (not self._stage["step"] or (is_quiet and self.bar.disable)):
            _say(self._console, part(what))
            self._said, self._said_at = what, time.time()

    def _what(self) -> str:
        step, stage = self._stage["step"], self._stage["stage"]
        return f"step {step}/{self._num_steps or '?'}: {stage}" if step else stage

    def _update_bar(self) -> None:
        step, waited = self._stage["step"], time.time() - self._stage["since"]
        self.bar.update(
            self._task,
            description=f"{self._what()}, {waited:.0f} s",
            total=self._num_steps if step else None,
            completed=self._steps[-1]["step"] if self._steps and step else 0,
        )


def _watch(view: View, stop: threading.Event) -> None:
    with view.bar:
        running = True
        while running:
            running = not stop.wait(POLL_S)
            view.look()


def step_line(step: dict[str, Any], num_steps: int | None) -> str:
    """Return one step's metrics as one line."""
    num_rollouts = step[metric_names.NUM_ROLLOUTS]
    parts = [
        f"step {step['step']:>2}/{num_steps or '?'}",
        _shown("reward", step[metric_names.REWARD], "+.3f"),
        f"refined {step[metric_names.NUM_ATTEMPTED]:.0f}/{num_rollouts:.0f}",
        f"accepted {step[metric_names.NUM_ACCEPTED]:.0f}/{num_rollouts:.0f}",
    ]
    if metric_names.CROSS_ENTROPY_ACCEPTED in step:  # mode sft measures it in some steps only
        parts.append(_shown("cross-entropy", step[metric_names.CROSS_ENTROPY_ACCEPTED], ".2f"))
    if metric_names.KL_REF in step:
        parts.append(_shown("KL", step[metric_names.KL_REF], ".4f"))
    return "  ".join([*parts, f"{step['timing_s/step']:.0f} s"])


def _shown(name: str, value: float | None, form: str) -> str:
    return f"{name} unknown" if value is None else f"{name} {value:{form}}"  # None: no finite number


def print_summary(console: Console, run_dir: RunDir) -> None:
    """Write the page; print two accepted refinements as diffs, what the page says, where all is, and what is next."""
    from recipe.report.findings import advice
    from recipe.report.page import write_page
    from recipe.report.reading import read_runs

    try:
        (arm,), page = read_runs([str(run_dir.path)]), run_dir.path / "report.html"
        accepted = (record for record in arm.runs[0].records if record["verdict"] == "accepted")
        for panel in panels(accepted, 2):
            console.print(panel)
        page.write_bytes(write_page([arm]))
        for line in advice(arm):
            _say(console, line)
        _say(console, f"run directory: {run_dir.path}")
        _say(console, f"its page, for a browser (curves, every refinement, what to change): {page}")
    except Exception as error:  # whatever it is, the run has ended well
        _say(console, f"its page could not be written ({error}): online-refiner report {run_dir.path}")
    _say(
        console, "next: online-refiner check, on your own model and data; then online-refiner train on them (README.md)"
    )


def panels(accepted: Iterable[dict[str, Any]], number: int) -> list[Panel]:
    """Return the refinements with the smallest edits among the first of some accepted ones, as diffs."""
    edits = {_edit(record): record for record in itertools.islice(accepted, NUM_COMPARED)}  # of equal ones the last
    return [_panel(edit, record) for edit, record in heapq.nsmallest(number, edits.items(), key=_rank)]


def _panel(edit: tuple[str, ...], record: dict[str, Any]) -> Panel:
    title = f"step {record['step']}, accepted: reward {record['reward']:+.2f} -> {record['refined_reward']:+.2f}"
    question = record["prompt"][-1]["content"].strip().translate(CONTROL)
    lines = ((f"{line}\n", SIGNS.get(line[0], "")) for line in edit)
    return Panel(Text.assemble((f"{question}\n\n", "dim"), *lines), title=title, title_align="left")


def _edit(record: dict[str, Any]) -> tuple[str, ...]:
    """Return the lines of a response and of its refinement, each after a sign: what is kept, taken out or added."""
    old, new = (record[name].strip().translate(CONTROL).splitlines() for name in ("response", "refined"))
    lines = itertools.islice(difflib.unified_diff(old, new, n=len(old), lineterm=""), 3, None)  # after three of header
    return tuple(f"{line[0]} {line[1:]}" for line in lines)


def _rank(shown: tuple[tuple[str, ...], dict[str, Any]]) -> tuple[float, int]:
    """Return what is small for what a reader learns most from: a high reward, and few characters taken out or added.

    Where much is changed, the reason is hard to see.
    """
    edit, record = shown
    return -record["refined_reward"], sum(len(line) for line in edit if line[0] in SIGNS)
