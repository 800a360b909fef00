"""What ``online-refiner refine`` has done so far: each answer and each refined problem, a line each, written at once.

A kill costs what was under way. The same command takes the rest from here.
"""

import fcntl
import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe.comparison import Answer
from recipe.online_refiner.pairs import Refinement, Rollout, Verdict
from recipe.runs.files import read_rows, to_lines

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
"""What is kept of a refinement: what files and shares are made of."""
LOST = (Verdict.REQUEST, Verdict.TIMEOUT)
"""What says nothing of the answer: its request was refused, or came to nothing."""


class Journal:
    """The lines of one output folder, of which one process at a time writes more.

    Args:
        folder: Made if it is absent.
        settings: What makes the answers and refinements what they are: another run with the same goes on. As long as
            nothing is done, others may take their place.

    Raises:
        ValueError: If it was begun with other settings, or somebody writes to it.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        """Read what is there; the end of a line that a kill has cut is taken away."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "journal.jsonl").open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"--output {folder}: another process writes there") from error
        self._file.seek(0)
        self._file.truncate(self._file.read().rfind(b"\n") + 1)
        lines = read_rows(folder / "journal.jsonl")
        begun, first = next(lines, {}), next(lines, None)
        other = [name for name, value in settings.items() if begun.get(name, ...) != json.loads(json.dumps(value))]
        if other and first is not None:
            raise ValueError(f"--output {folder} was begun with another {', '.join(other)}; give another folder")
        if other:
            self._file.truncate(0)
            self._write(settings)
        self.answers: dict[int, dict[int, Answer]] = defaultdict(dict)
        """Rewarded answers by row and number."""
        self.refined: dict[int, dict[int, Refinement]] = defaultdict(dict)
        """What became of them."""
        for line in itertools.chain([first] if first else [], lines):
            if "answer" in line:
                self.answers[line["row"]][line["sample"]] = Answer(**line["answer"])
            else:
                found = {int(sample): Refinement(**one) for sample, one in line["refined"].items()}
                for one in found.values():
                    one.verdict = Verdict(one.verdict)
                self.refined[line["row"]] |= found

    def known(self, row: int) -> dict[int, Answer]:
        """Return the rewarded answers to a row by number; those of lost requests are to be refined again."""
        done = {sample for sample, one in self.refined.get(row, {}).items() if one.verdict not in LOST}
        return {sample: replace(one, is_refined=sample in done) for sample, one in self.answers[row].items()}

    def is_finished(self, row: int, num_answers: int) -> bool:
        """Tell whether nothing of a row need be asked for."""
        return sum(one.is_refined for one in self.known(row).values()) == num_answers

    def add_answer(self, rollout: Rollout) -> None:
        """Write an answer with its reward."""
        row, (sample, _) = int(rollout.group), rollout.session
        answer = {"ids": rollout.response_ids, "reward": rollout.reward, "feedback": rollout.feedback}
        self.answers[row][sample] = Answer(**answer)  # type: ignore[arg-type]
        self._write({"row": row, "sample": sample, "answer": answer})

    def add_problem(self, row: int, group: list[Rollout], found: list[Refinement]) -> None:
        """Write what became of the answers to a row, but of those of which it was known."""
        pairs = zip(group, found, strict=True)
        new = {old.session[0]: one for old, one in pairs if one.verdict is not Verdict.OVER_BUDGET}
        if new:
            self.refined[row] |= new
            kept = {sample: {name: getattr(one, name) for name in OF_REFINEMENT} for sample, one in new.items()}
            self._write({"row": row, "refined": kept})

    def problem(self, row: int) -> tuple[list[Rollout], list[Refinement]]:
        """Return the answers to a row of which it is known what became, without its prompt, and that."""
        done = sorted(self.refined[row].items())
        group = [
            Rollout(
                key=f"{row}_{sample}_0",
                messages=[],
                prompt_ids=[],
                response_ids=one.ids,
                reward=one.reward or 0.0,
                feedback=one.feedback,
                request={},
            )
            for sample, one in ((sample, self.answers[row][sample]) for sample, _ in done)
        ]
        return group, [one for _, one in done]

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(to_lines([line]))
        self._file.flush()
