"""Rows to train.parquet and val.parquet, and the data card that says what was kept and dropped."""

import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from recipe.data_preparation.fields import Dropped, Record, text_in
from recipe.data_preparation.rows import Build, Lines, Row, Screen, contradiction

SPLITS = ("train", "val")


@dataclass(slots=True, kw_only=True)
class Card:
    """What a conversion did.

    Example: ``Card(source="apps", num_read=5, kept={"train": 4}, dropped={"no tests": ["0007"]})``.
    """

    source: str
    num_read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """Rows by split."""
    dropped: dict[str, list[str]] = field(default_factory=dict)
    """Ids of dropped records by reason, each with what is wrong."""
    compared_as_text: list[str] = field(default_factory=list)
    """Ids of kept records whose expected answer no parser reads, each with the answer."""

    def drop(self, where: str, dropped: Dropped) -> None:
        """Count a record that is dropped."""
        line = " ".join(f"{where}: {dropped.detail}".split()) if dropped.detail else where
        self.dropped.setdefault(dropped.reason, []).append(line)

    def text(self) -> str:
        """Return the card as Markdown."""
        lines = [f"# {self.source}", "", f"{self.num_read} records read."]
        lines += [f"- {split}: {self.kept[split]} rows" for split in SPLITS]
        for reason, ids in sorted(self.dropped.items()):
            lines += ["", f"## Dropped, {reason}: {len(ids)}", *(f"- {name}" for name in ids)]
        if self.compared_as_text:
            title = f"## Kept, the answer is compared as text: {len(self.compared_as_text)}"
            lines += ["", title, *(f"- {name}" for name in self.compared_as_text)]
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """Return one line for the terminal."""
        drops = ", ".join(f"{len(ids)} {reason}" for reason, ids in sorted(self.dropped.items())) or "none"
        kept = ", ".join(f"{self.kept[split]} {split}" for split in SPLITS)
        empty = "" if self.kept["val"] else "; data.val_files needs rows: raise --val-fraction or prepare another split"
        number = len(self.compared_as_text)
        as_text = f"; {number} answer{' is' if number == 1 else 's are'} compared as text" if number else ""
        return f"{self.num_read} records: {kept}; dropped: {drops}{as_text}{empty}"


def convert(
    records: Iterator[Record],
    build: Build,
    *,
    name: str,
    screen: Screen,
    output: Path,
    val_fraction: float,
    extra: Mapping[str, Lines],
) -> Card:
    """Convert records to rows and write them with their card, when all are read.

    Args:
        records: The source.
        build: A function that makes a row of a record, such as ``apps_row``, or raises ``Dropped``.
        name: ``data_source`` of the rows.
        screen: What drops duplicates and overlaps.
        output: Folder; gets train.parquet, val.parquet, card.md and the extra files.
        val_fraction: Share of rows for val.parquet, chosen by a hash of the prompt: the same in every run.
        extra: JSON lines files by name, and what a kept record writes to them.

    Raises:
        ValueError: If nothing is left.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    card = Card(source=name)
    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    lines: dict[str, list[str]] = {file: [] for file in extra}
    for where, row, of_row in list(_rows_of(records, build, name, screen, card, extra)):
        if screen.is_contradicted(row):  # which the last row of all may have shown
            card.drop(where, contradiction(row))
            continue
        place = zlib.crc32(json.dumps(row["prompt"]).encode()) / 2**32
        rows["val" if place < val_fraction else "train"].append(row)
        for file, texts in of_row.items():
            lines[file] += texts
    if not any(rows.values()):
        first = "; ".join(f"{reason}: {ids[0]}" for reason, ids in card.dropped.items())
        raise ValueError(f"no usable record of {card.num_read} (data source {name}); the first: {first}")
    output.mkdir(parents=True, exist_ok=True)
    for split, kept in rows.items():
        card.kept[split], path = len(kept), output / f"{split}.parquet"
        path.unlink(missing_ok=True)  # an earlier conversion's, whose rows may be in the other file now
        if kept:
            pq.write_table(pa.Table.from_pylist(kept), path)
    for file, texts in lines.items():
        (output / file).write_text("".join(texts), encoding="utf-8")
    (output / "card.md").write_text(card.text(), encoding="utf-8")
    return card


def _rows_of(
    records: Iterator[Record],
    build: Build,
    name: str,
    screen: Screen,
    card: Card,
    extra: Mapping[str, Lines],
) -> Iterator[tuple[str, Row, dict[str, list[str]]]]:
    """Yield where each record that makes a row stands, the row, and its lines; put the other records on the card."""
    ids: set[str] = set()
    for index, record in enumerate(records):
        card.num_read += 1
        where = text_in(record, "problem_id") or f"row {index + 1}"
        try:
            row = _row_of(build, record, index, name)
            screen.check(row)
        except Dropped as dropped:
            card.drop(where, dropped)
            continue
        if row["extra_info"].get("compared_as") == "text":
            card.compared_as_text.append(" ".join(f"{where}: {row['reward_model']['ground_truth'][:80]}".split()))
        own = row["extra_info"].get("problem_id")
        if own is not None and own in ids:  # a source that numbers the problems of each part from 0
            row["extra_info"]["problem_id"] = own = f"{own}/{index}"
        ids.add(own)
        yield where, row, {file: [json.dumps(line) + "\n" for line in of(record, row)] for file, of in extra.items()}


def _row_of(build: Build, record: Record, index: int, name: str) -> Row:
    """Build a row; a record may hold anything, and what no reader expects costs no other record."""
    try:
        row = build(record, index, name)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Dropped("no Unicode", f"it holds a lone surrogate: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise Dropped("malformed", f"{type(error).__name__}: {error}") from error
    return row
