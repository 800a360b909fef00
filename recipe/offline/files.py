"""The files for other trainers, in the columns that these read, and the card beside the files.

``sft``: ``prompt`` and ``completion`` for TRL's SFTTrainer, ``messages`` for verl's SFT trainer. ``preference``:
``prompt``, ``chosen`` (the refinement) and ``rejected`` (the answer) for TRL's DPOTrainer. Both files have only
refinements with a higher reward. ``all``: every answer, with its refinement, both rewards and the verdict.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from recipe.offline.journal import Journal
from recipe.online_refiner.method.pairs import Verdict
from recipe.runs.files import to_lines
from refiner_worker.text.tokens import decode

Row = dict[str, Any]


def all_answers(journal: Journal, rows: Sequence[Mapping[str, Any]], tokenizer: Any) -> Iterator[Row]:
    """Yield each finished answer with its refinement, once per variant of the refiner, in the order of the rows."""
    for row in sorted(journal.refined):
        group, refined = journal.problem(row)
        for way, found in refined.items():
            for old, new in zip(group, found, strict=True):
                yield {
                    "prompt": [dict(message) for message in rows[row]["prompt"]],
                    "row": row,
                    "data_source": rows[row]["data_source"],
                    "sample": old.session[0],
                    "way": way,
                    "response": _whole(decode(tokenizer, old.response_ids)),
                    "refined": _whole(new.text) or None,
                    "feedback": old.feedback,
                    "reward": old.reward,
                    "refined_reward": new.reward,
                    "verdict": str(new.verdict),
                    "num_samples": new.num_samples,
                    "num_better": new.num_better,
                    **({"images": rows[row]["images"]} if "images" in rows[row] else {}),
                }


def _whole(text: str) -> str:
    """Return a text without lone surrogates, which parquet cannot hold."""
    return text.encode(errors="replace").decode()


def formats(answers: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each file."""
    sft, preference = list[Row](), list[Row]()
    for one in answers:
        if one["verdict"] == Verdict.ACCEPTED:
            prompt, chosen, rejected = one["prompt"], _said(one["refined"]), _said(one["response"])
            seen = {name: one[name] for name in ("images",) if name in one}
            sft.append({"prompt": prompt, "completion": chosen, "messages": prompt + chosen, **seen})
            preference.append({"prompt": prompt, "chosen": chosen, "rejected": rejected, **seen})
    return {"sft": sft, "preference": preference, "all": list(answers)}


def _said(text: str) -> list[dict[str, str]]:
    """Return a reply as a chat's last message."""
    return [{"role": "assistant", "content": text}]


def write(path: Path, rows: list[Row]) -> None:
    """Write JSON lines or parquet; a file of the same name is replaced once all is written.

    JSON cannot hold images: its lines have their places in the prompts alone.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    new = path.with_suffix(".new")
    if path.suffix == ".jsonl":
        new.write_bytes(to_lines({name: value for name, value in row.items() if name != "images"} for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), new)
    new.replace(path)


def card(settings: Mapping[str, Any], files: Iterable[str], shares: str, licence: str | None) -> str:
    """Return the data card of the files, as Markdown with the front matter that the hub reads."""
    lines = [f"---\nlicense: {licence}\n---"] if licence else []
    lines += ["# Refined answers", "", *(f"- {file}" for file in files)]
    lines += [f"- licence: {licence or 'not told (`--license`): that of the source holds'}"]
    return "\n".join([*lines, *(f"- {name}: {value}" for name, value in settings.items()), "", shares, ""])
