"""What has been done so far: each answer and each refined problem, a line each, written at once.

A kill costs what was under way. The same command takes the rest from here.
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
"""What is kept: what files and shares are made of."""
LOST = (Verdict.REQUEST, Verdict.TIMEOUT)
"""What says nothing of the answer: its request was refused, or came to nothing."""


class Journal:
    """A file of JSON lines, to which one process at a time writes more.

    Args:
        path: Made if it is absent.
        settings: What makes the answers and refinements what they are: another run with the same goes on.
        goes_on: Whether what is there counts.

    Raises:
        ValueError: If it was begun with other settings, or somebody writes to it.
    """

    def __init__(self, path: Path, settings: dict[str, Any], *, goes_on: bool = True) -> None:
        """Read what is there; the end of a line that a kill has cut is taken away."""
        self._lock = Lock(path.parent, f"--output {path.parent}")
        self._file, self._settings = path.open("a+b"), settings
        self._file.seek(0)
        self._file.seek(self._file.read().rfind(b"\n") + 1 if goes_on else 0)
        self._file.truncate()
        self.answers: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
        """Rewarded answers by row and number, as fields of their rollouts."""
        self.refined: dict[int, dict[int, dict[str, Refinement]]] = defaultdict(dict)
        """What became of them, by way."""
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
        """Return the rewarded answers to a row by number; those of lost requests are to be refined again."""
        done = {
            sample
            for sample, ways in self.refined.get(row, {}).items()
            if not any(one.verdict in LOST for one in ways.values())
        }
        return {sample: {**one, "is_wanted": sample not in done} for sample, one in self.answers[row].items()}

    def is_finished(self, row: int, num_answers: int) -> bool:
        """Tell whether nothing of a row need be asked for."""
        return sum(not one["is_wanted"] for one in self.known(row).values()) == num_answers

    def add_answer(self, rollout: Rollout) -> None:
        """Write an answer with its reward."""
        row, (sample, _) = int(rollout.group), rollout.session
        answer = self.answers[row][sample] = {name: getattr(rollout, name) for name in OF_ANSWER}
        self._write({"row": row, "sample": sample, "answer": answer})

    def add_problem(self, row: int, group: list[Rollout], refined: dict[str, list[Refinement]]) -> None:
        """Write what became of the answers to a row, but of those of which it was known."""
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
        """Return the answers to a row of which it is known what became, without its prompt, and that by way."""
        done = sorted(self.refined[row].items())
        group = [
            Rollout(key=f"{row}_{sample}_0", messages=[], prompt_ids=[], request={}, **self.answers[row][sample])
            for sample, _ in done
        ]
        return group, {way: [ways[way] for _, ways in done] for way in done[0][1]}

    def _write(self, line: dict[str, Any]) -> None:
        lines = [line] if self._file.tell() else [self._settings, line]
        self._file.write(to_lines(lines))
        self._file.flush()
