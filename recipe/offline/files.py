"""Files for others' training, in the columns that they read, and the card beside them.

``sft``: ``prompt`` and ``completion`` for TRL's SFTTrainer, ``messages`` for verl's SFT trainer. ``preference``:
``prompt``, ``chosen`` (the refinement) and ``rejected`` (the answer) for TRL's DPOTrainer. Both have refinements with a
higher reward only. ``all``: every answer, with its refinement, both rewards and the verdict.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.offline.journal import Journal
from recipe.online_refiner.pairs import Refinement, Rollout, Verdict
from recipe.runs.files import to_lines
from refiner_worker.parsing import decode

Row = dict[str, Any]


def said(text: str) -> list[dict[str, str]]:
    """Return a reply as a chat's last message."""
    return [{"role": "assistant", "content": text}]


def sft(prompt: list[dict[str, str]], answer: Row) -> Row | None:
    """Return the question with a better refinement as its answer."""
    if answer["verdict"] != Verdict.ACCEPTED:
        return None
    return {"prompt": prompt, "completion": said(answer["refined"]), "messages": prompt + said(answer["refined"])}


def preference(prompt: list[dict[str, str]], answer: Row) -> Row | None:
    """Return a better refinement, which is preferred to the answer."""
    if answer["verdict"] != Verdict.ACCEPTED:
        return None
    return {"prompt": prompt, "chosen": said(answer["refined"]), "rejected": said(answer["response"])}


def everything(prompt: list[dict[str, str]], answer: Row) -> Row:
    """Return all that is known."""
    return {"prompt": prompt, **answer}


FORMATS: dict[str, Callable[[list[dict[str, str]], Row], Row | None]] = {
    "sft": sft,
    "preference": preference,
    "all": everything,
}


def answers_of(journal: Journal, rows: Sequence[Mapping[str, Any]], tokenizer: Any) -> Iterator[tuple[list, Row]]:
    """Yield prompt and answer, with its refinement, of all that is done, in order of the rows."""
    for row in sorted(journal.refined):
        prompt = [dict(message) for message in rows[row]["prompt"]]
        for rollout, new in zip(*journal.problem(row), strict=True):
            yield prompt, {"row": row, "data_source": rows[row]["data_source"], **_answer(rollout, new, tokenizer)}


def _answer(rollout: Rollout, new: Refinement, tokenizer: Any) -> Row:
    sample, _ = rollout.session
    is_scored = new.verdict.is_scored
    texts = {
        "response": decode(tokenizer, rollout.response_ids),
        "refined": new.text if is_scored else None,
        "feedback": rollout.feedback,
    }
    return {
        "sample": sample,
        # No half characters: parquet does not hold them.
        **{name: text and text.encode(errors="replace").decode() for name, text in texts.items()},
        "reward": rollout.reward,
        "refined_reward": new.reward if is_scored else None,
        "verdict": str(new.verdict),
    }


def write(folder: Path, name: str, rows: Iterable[Row], *, as_lines: bool) -> tuple[Path, int]:
    """Write a file, over one of the same name once it is whole, and return its path and the number of its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept, path = list(rows), folder / f"{name}.{'jsonl' if as_lines else 'parquet'}"
    new = path.with_suffix(".new")
    if as_lines:
        new.write_bytes(to_lines(kept))
    else:
        pq.write_table(pa.Table.from_pylist(kept), new)
    new.replace(path)
    return path, len(kept)


def card(settings: Mapping[str, Any], files: Mapping[str, int], shares: str, licence: str | None) -> str:
    """Return what a reader of the files has to know, as Markdown with the front matter of a hub's data card."""
    told = "not told (`--license`): the source's holds" if licence is None else licence
    lines = [*(["---", f"license: {licence}", "---"] if licence else []), "# Refined answers", ""]
    lines += [f"- `{name}`: {number} rows" for name, number in files.items()]
    lines += [f"- licence: {told}", *(f"- {name}: {value}" for name, value in settings.items())]
    return "\n".join([*lines, "", shares, ""])
