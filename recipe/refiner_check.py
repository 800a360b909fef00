"""The check before a run: does refining an answer beat answering again? ``recipe.check`` is its command."""

import argparse
import asyncio
import importlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, Self, TextIO

import numpy as np
from omegaconf import OmegaConf
from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typing_extensions import TypedDict
from yaml import YAMLError

from recipe.comparison import MAX_WAITING, OUTCOMES, Bench, Engine, Reward, interval, t_interval, wrong
from recipe.online_refiner.pairs import Refinement, Rollout
from recipe.runs.console import in_words
from refiner_worker.config import BY_SOURCE, OF_SERVERS, RefinerConfig, is_higher, read_refiner

SAY_EVERY = 8
"""Problems, after which the numbers so far are printed."""
FEWEST = 5
"""Problems, of which an interval says something: that of a single one has no width."""
LINE_EVERY_S = 20.0
"""Where output is no terminal."""
ACTING = {*BY_SOURCE, *OF_SERVERS, "placement", "thoughts", "rewrites", "reject_leaks"} - {"skip_reward_at_least"}
"""Keys of the block ``refiner`` that act without a run. Others are a run's, or options of the command."""
OPTIONS = {"skip_reward_at_least": "--highest-reward", "model_path": "--model", "max_model_len": "--max-model-len"}
"""Options that stand for such keys."""


class Message(TypedDict):
    """One of a chat."""

    role: str
    content: str | None


class Truth(TypedDict):
    """What a reward function is told of a row's solution."""

    ground_truth: Any


class Row(TypedDict):
    """What is read of a row: verl's schema, and the user's own answers (``GIVEN``)."""

    prompt: list[Message]
    data_source: str
    reward_model: Truth
    extra_info: NotRequired[dict[str, Any] | None]
    responses: NotRequired[list[str] | None]


@dataclass(slots=True)
class Found:
    """What has been seen so far."""

    ways: list[str]
    num_problems: int = 0
    num_answers: int = 0
    wrong: list[Rollout] = field(default_factory=list)
    """Answers whose rewards can improve."""
    others: list[list[tuple[bool, bool]]] = field(default_factory=list)
    """Of each of them: of every other answer to its problem, whether it has a higher reward, and whether another one of
    the rest has the highest."""
    refined: dict[str, list[Refinement]] = field(default_factory=dict)
    """By way, in the order of ``wrong``."""

    def add(self, group: list[Rollout], refined: dict[str, list[Refinement]]) -> None:
        """Take in the answers to a problem, and what became of each."""
        self.num_problems += 1
        self.num_answers += len(group)
        pairs = {way: wrong(group, refined[way]) for way in self.ways}
        own = [old for old, _ in pairs[self.ways[0]]]  # as of every way
        right = [one for one in group if one not in own]
        for one in own:
            others = [other for other in group if other is not one]
            self.others.append([(is_higher(other.reward, one.reward), right not in ([], [other])) for other in others])
        self.wrong += own
        for way, of_way in pairs.items():
            self.refined.setdefault(way, []).extend(new for _, new in of_way)

    def describe(self, highest: float) -> str:
        """Return the table and what is above it."""
        if not self.wrong:
            return f"nothing was refined: none of {self.num_answers} answers has a reward below {highest:g}"
        problems = np.array([int(one.group) for one in self.wrong])
        lines = [
            f"{len(self.wrong)} of {self.num_answers} answers to {self.num_problems} problems were refined, to "
            f"{len(set(problems))} problems"
        ]
        has_others = np.array([bool(others) for others in self.others])
        if has_others.any():
            better = np.array([np.mean([is_better for is_better, _ in others]) for others in self.others if others])
            lines.append(f"Another answer has a higher reward: {_share(better, problems[has_others])}")
        lines += ["", f"| way | {' | '.join(OUTCOMES)} | tokens read | written |", "|---" * (len(OUTCOMES) + 3) + "|"]
        first: dict[str, np.ndarray] = {}
        for way, refined in self.refined.items():
            cells = []
            for name in OUTCOMES:
                values = self._values(way, name)
                cells.append(_share(values, problems))
                if name in first:
                    cells[-1] += ", {:+.1%} ({:+.1%} to {:+.1%})".format(*interval(values - first[name], problems))
                first.setdefault(name, values)
            for kind in ("prompt", "generated"):
                cells.append(f"{np.mean([getattr(one, f'num_{kind}_tokens') for one in refined]):.0f}")
            lines.append(f"| `{way}` | {' | '.join(cells)} |")
        return "\n".join([*lines, "", *self.yields(), *self.verdicts()])

    def yields(self) -> list[str]:
        """Return how often one of 1, 2, ... drawn refinements improves an answer, a line for each way that drew some.

        Of n drawn ones, c better, one of k others is better with probability 1 - C(n - c, k) / C(n, k).
        """
        problems, lines = np.array([int(one.group) for one in self.wrong]), []
        for way, refined in self.refined.items():
            num = max(one.num_samples for one in refined)
            shares = (
                interval(
                    np.array([1 - math.comb(num - one.num_better, k) / math.comb(num, k) for one in refined]), problems
                )
                for k in range(1, num + 1)
            )
            said = (f"{k}: {mean:.1%} ({low:.1%} to {high:.1%})" for k, (mean, low, high) in enumerate(shares, 1))
            lines += [f"`{way}`, improved by the best of {', '.join(said)}"] * (num > 1)
        return lines

    def verdicts(self) -> list[str]:
        """Return of each way whether it improves more wrong answers than another answer does, in a line.

        Then of problems that are not solved, and of others. Which they are, the compared answer does not tell: among
        answers of which none is right, the other one is wrong by choice, and refining would win by that.
        """
        lines = []
        for which, counted in {
            "": (False, True),
            " where no answer is right": (False,),
            " where one is right": (True,),
        }.items():
            pairs = [(n, is_better) for n, own in enumerate(self.others) for is_better, so in own if so in counted]
            if not pairs or (which and len(pairs) == sum(map(len, self.others))):
                continue
            refined, better = (np.array(column) for column in zip(*pairs, strict=True))
            problems = np.array([int(self.wrong[n].group) for n in refined])
            for way in self.refined:
                differences = self._values(way, "improved")[refined] - better
                mean, low, high = t_interval(differences, problems)
                is_told = len(set(problems)) >= FEWEST and not low <= 0 <= high
                word = ("wins" if mean > 0 else "loses") if is_told else "is not told from it: take more --problems"
                lines.append(
                    f"`{way}` against another answer{which}: {mean:+.1%} ({low:+.1%} to {high:+.1%}, "
                    f"{len(set(refined))} answers): it {word}"
                )
        return lines

    def _values(self, way: str, outcome: str) -> np.ndarray:
        pairs = zip(self.wrong, self.refined[way], strict=True)
        return np.array([float(OUTCOMES[outcome](*pair)) for pair in pairs])


def _share(values: np.ndarray, problems: np.ndarray) -> str:
    return "{:.1%} ({:.1%} to {:.1%})".format(*interval(values, problems))


class Countdown:
    """Says how far the work is and how long it still takes: a bar, or lines where the output is no terminal.

    Args:
        total: Answers and refinements, so far as is known.
        output: Where to.
        clock: Seconds.
    """

    def __init__(self, total: int, output: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin."""
        self._clock, self._output = clock, output
        self._done, self._total = 0, total
        self._began = self._said = clock()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=Console(file=output), disable=not output.isatty())
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it is."""
        self._bar.stop()

    def advance(self, done: int, dropped: int = 0) -> None:
        """Count answers and refinements: those that are there, and those that need not be, as of right answers."""
        self._done += done
        self._total -= dropped
        self._bar.update(self._task, completed=self._done, total=self._total, description=self.time_left())
        if self._bar.disable and self._clock() > self._said + LINE_EVERY_S:
            self._said = self._clock()
            self.say(f"{self._done} of {self._total} answers and refinements, {self.time_left()}")

    def say(self, text: str) -> None:
        """Print a line, above the bar."""
        self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._output.flush()

    def time_left(self) -> str:
        """Return the time left in words, at the mean speed so far, which the first requests do not show."""
        if self._done < min(MAX_WAITING, self._total // 4):
            return "time left not known yet"
        return in_words((self._clock() - self._began) / max(self._done, 1) * (self._total - self._done))


async def compare(arguments: argparse.Namespace) -> tuple[Found, bool]:
    """Do it; return what was found, and whether Ctrl-C ended it."""
    rows = read_data(arguments.data)
    chosen = choose(len(rows), arguments.problems, arguments.seed)
    print(
        f"{len(chosen)} of {len(rows)} problems (--problems), {arguments.samples} answers to each (--samples), at most "
        f"{arguments.max_response_tokens} tokens an answer (--max-response-tokens) and {arguments.max_new_tokens} a "
        "refinement (--max-new-tokens)\nloading the model ...",
        flush=True,
    )
    bench, found = make_bench(arguments), Found(arguments.ways)
    refiners = {way: bench.refiner(config_of(way, arguments)) for way in arguments.ways}
    total = len(chosen) * arguments.samples * (1 + len(refiners))
    try:
        with Countdown(total, sys.stdout) as countdown, arguments.output.open("w") as file:
            bench.on_progress = countdown.advance
            async for _, group, refined in bench.problems(rows, chosen, refiners, arguments.samples):
                found.add(group, refined)
                write(file, bench, group, refined)
                if found.num_problems % SAY_EVERY == 0:
                    for line in found.verdicts():
                        countdown.say(f"the quickest {found.num_problems} problems: {line}")
    except asyncio.CancelledError:
        print("stopped: the numbers are of the problems that were finished", flush=True)
        return found, True
    finally:
        end(bench)
    return found, False


def end(bench: Bench) -> None:
    """End the engine, and say which answers have no reward."""
    if bench.engine is not None:
        bench.engine.close()
    if bench.failed:
        print(f"{len(bench.failed)} answers are left out, the first: {bench.failed[0]}")


def read_data(files: Iterable[Path]) -> list[Row]:
    """Return the rows of parquet files.

    Raises:
        ValueError: If a file is none, or a row is not as it should be.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, form = list[Row](), TypeAdapter(Row)
    for file in files:
        try:
            table = pq.read_table(file)
        except pa.ArrowInvalid:
            made = "`online-refiner prepare rows` makes one of CSV or JSON lines"
            raise ValueError(f"--data {file} is no parquet file; {made}") from None
        read = table.select([name for name in Row.__annotations__ if name in table.column_names]).to_pylist()
        for number, row in enumerate(read):
            try:
                form.validate_python(row)
            except ValidationError as error:
                wrong = error.errors()[0]
                where = ".".join(map(str, wrong["loc"]))
                raise ValueError(f"--data {file}, row {number}, {where}: {wrong['msg']}; it is {row!r:.200}") from None
        rows += read
    if not rows:
        raise ValueError("--data has no rows")
    return rows


def choose(num_rows: int, num_problems: int, seed: int) -> list[int]:
    """Return the rows of the problems, in order; 0 problems: all rows."""
    if not 0 < num_problems < num_rows:
        return list(range(num_rows))
    return sorted(random.Random(seed).sample(range(num_rows), num_problems))


def make_bench(arguments: argparse.Namespace, *, has_engine: bool = True) -> Bench:
    """Load the model, or only its tokenizer."""
    from transformers import AutoTokenizer

    from refiner_worker.turn_end import read_turn_end

    reward = reward_of(arguments.reward)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    return Bench(
        engine=Engine(arguments.model, arguments.max_model_len, arguments.seed, arguments.dtype)
        if has_engine
        else None,
        tokenizer=tokenizer,
        turn_end=read_turn_end(arguments.model, tokenizer),
        reward=reward,
        max_response_tokens=arguments.max_response_tokens,
        max_model_len=arguments.max_model_len,
    )


def reward_of(name: str) -> Reward:
    """Return a reward function.

    Raises:
        ValueError: If there is none of this name.
    """
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"--reward {name}: {error}; give MODULE:NAME, of a MODULE.py in this folder") from error


def config_of(way: str, arguments: argparse.Namespace) -> RefinerConfig:
    """Return a way as the block ``refiner``.

    Raises:
        ValueError: If a key is wrong, there is no such template, or the key acts in a run only.
    """
    if arguments.samples < 1:
        raise ValueError(f"--samples {arguments.samples}: give 1 or more")
    config = read_refiner(settings_of(way, arguments))
    config.template_path()
    for key in keys_of(way, arguments):
        if key not in ACTING:
            instead = f"give {OPTIONS[key]}" if key in OPTIONS else "leave it out"
            raise ValueError(f"refiner.{key} acts in a run only; {instead}")
    if config.placement not in ("colocated", "external"):
        raise ValueError(f"refiner.placement={config.placement} acts in a run only; leave it out, or set external")
    return config


def settings_of(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return a way as the block ``refiner``."""
    template, *more = way.split("+")
    return {
        "model_path": "",
        "template": template,
        "context": [one for one in more if "=" not in one],
        "skip_reward_at_least": arguments.highest_reward,
        "response_length": arguments.max_new_tokens,
        **keys_of(way, arguments),
    }


def keys_of(way: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the keys that a user has set; a way's own hold before those of all ways.

    Raises:
        ValueError: If one has no value, or none that can be read.
    """
    given = [*arguments.refiner, *(one for one in way.split("+")[1:] if "=" in one)]
    for one in given:
        if "=" not in one:
            raise ValueError(f"--refiner {one}: give KEY=VALUE")
    try:
        return {str(key): value for key, value in OmegaConf.from_dotlist(given).items()}
    except YAMLError as error:
        raise ValueError(f"--refiner {' '.join(given)}: {error}") from error


def write(file: TextIO, bench: Bench, group: list[Rollout], refined: dict[str, list[Refinement]]) -> None:
    """Write the wrong answers of a group and their refinements, a line each."""
    for way, found in refined.items():
        for old, new in wrong(group, found):
            line = {
                "way": way,
                "key": old.key,
                "reward": old.reward,
                "refined_reward": new.reward,
                "others": [one.reward for one in group if one is not old],
                "response": bench.tokenizer.decode(old.response_ids),
                "feedback": old.feedback,
                "question": old.messages[-1]["content"],
                "refined": new.text,
                "verdict": new.verdict,
                "num_samples": new.num_samples,
                "num_better": new.num_better,
            }
            file.write(json.dumps(line) + "\n")
    file.flush()
