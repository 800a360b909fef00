"""The journal of finished work: one line for each answer and each refined problem, written at once.

A killed command loses only the work in progress. The same command continues from the journal.
"""

from collections import defaultdict
from pathlib import Path
from typing import Any

from recipe.online_refiner.method.pairs import Refinement, Rollout, Verdict
from recipe.runs.files import read_rows, to_lines
from recipe.runs.lock import Lock

OF_ANSWER = ("response_ids", "reward", "feedback")
OF_REFINEMENT = (
    "verdict",
    "text",
    "reward",
    "is_repeated",
    "num_samples",
    "num_better",
    "num_prompt_tokens",
    "num_generated_tokens",
)
"""The fields of a refinement that are kept, since files and shares are made from them."""
LOST = (Verdict.REQUEST, Verdict.TIMEOUT)
"""The verdicts of lost requests, which were refused or not answered in time; they say nothing about the answer."""


class Journal:
    """A file of JSON lines, to which one process at a time appends.

    Args:
        path: The file, which is made if it is absent.
        settings: The settings that decide the answers and refinements; a later run with the same settings continues.
        goes_on: Whether to continue from the lines of an existing file.

    Raises:
        ValueError: If the file was begun with other settings, or another process writes to it.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, goes_on: bool = True) -> None:
        """Read the file, and remove a last line that was cut when a process was killed."""
        self._lock = Lock(path.parent, f"--output {path.parent}")
        self._file, self._settings = path.open("a+b"), settings
        self._file.seek(0)
        self._file.seek(self._file.read().rfind(b"\n") + 1 if goes_on else 0)
        self._file.truncate()
        self.answers: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        """The rewarded answers by row and number, as fields of their rollouts."""
        self.refined: dict[int, dict[int, dict[str, Refinement]]] = defaultdict(dict)
        """The refinements of those answers, by row, number and variant of the refiner."""
        lines = read_rows(path)
        begun = next(lines, settings)
        if other := [name for name, value in settings.items() if begun.get(name, ...) != value]:
            said = f"--output {path.parent} was begun with other settings: {', '.join(other)}"
            raise ValueError(f"{said}; give another folder")
        for line in lines:
            if "answer" in line:
                self.answers[line["row"]][line["sample"]] = line["answer"]
            for sample, ways in line.get("refined", {}).items():
                self.refined[line["row"]][int(sample)] = {
                    way: Refinement(**{**one, "verdict": Verdict(one["verdict"])}) for way, one in ways.items()
                }

    def known(self, row: int) -> dict[int, dict[str, Any]]:
        """Return the rewarded answers to a row by number; ``is_wanted`` is true if one has to be refined (again)."""
        done = {
            sample
            for sample, ways in self.refined.get(row, {}).items()
            if not any(one.verdict in LOST for one in ways.values())
        }
        return {sample: {**one, "is_wanted": sample not in done} for sample, one in self.answers[row].items()}

    def is_finished(self, row: int, num_answers: int) -> bool:
        """Return whether a row has all its answers, and each of them is refined."""
        return sum(not one["is_wanted"] for one in self.known(row).values()) == num_answers

    def add_answer(self, rollout: Rollout) -> None:
        """Write an answer with its reward."""
        row, (sample, _) = int(rollout.group), rollout.session
        answer = self.answers[row][sample] = {name: getattr(rollout, name) for name in OF_ANSWER}
        self._write({"row": row, "sample": sample, "answer": answer})

    def add_problem(self, row: int, group: list[Rollout], refined: dict[str, list[Refinement]]) -> None:
        """Write the refinements of a row's answers, unless the journal has them already."""
        new = {
            old.session[0]: {way: found[n] for way, found in refined.items()}
            for n, old in enumerate(group)
            if old.is_wanted
        }
        if new:
            self.refined[row] |= new
            kept = {
                sample: {way: {name: getattr(one, name) for name in OF_REFINEMENT} for way, one in ways.items()}
                for sample, ways in new.items()
            }
            self._write({"row": row, "refined": kept})

    def problem(self, row: int) -> tuple[list[Rollout], dict[str, list[Refinement]]]:
        """Return the refined answers to a row, without the prompt, and their refinements by variant of the refiner."""
        done = sorted(self.refined[row].items())
        group = [
            Rollout(key=f"{row}_{sample}_0", messages=[], prompt_ids=[], reward_columns={}, **self.answers[row][sample])
            for sample, _ in done
        ]
        return group, {way: [ways[way] for _, ways in done] for way in done[0][1]}

    def _write(self, line: dict[str, Any]) -> None:
        lines = [line] if self._file.tell() else [self._settings, line]
        self._file.write(to_lines(lines))
        self._file.flush()
