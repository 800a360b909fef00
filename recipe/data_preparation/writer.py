"""Rows to train.parquet and val.parquet, batch by batch, and the data card that says what was kept and dropped."""

import contextlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TextIO

from recipe.data_preparation.fields import Dropped, Record, text_in
from recipe.data_preparation.rows import Row, Screen, contradiction

BATCH_SIZE = 256
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
        return "\n".join(lines) + "\n"

    def summary(self) -> str:
        """Return one line for the terminal."""
        drops = ", ".join(f"{len(ids)} {reason}" for reason, ids in sorted(self.dropped.items())) or "none"
        kept = ", ".join(f"{self.kept[split]} {split}" for split in SPLITS)
        empty = "" if self.kept["val"] else "; data.val_files needs rows: raise --val-fraction or prepare another split"
        return f"{self.num_read} records: {kept}; dropped: {drops}{empty}"


@contextlib.contextmanager
def parquet_file(path: Path) -> Iterator[Callable[[Row], None]]:
    """Yield what adds a row to a file that is there when it is complete; at most BATCH_SIZE rows are in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, scratch, writer = list[Row](), path.with_suffix(".part"), None

    def add(row: Row | None) -> None:
        nonlocal writer
        rows.extend([row] if row else [])
        if len(rows) == BATCH_SIZE or (rows and row is None):
            table = pa.Table.from_pylist(rows, schema=writer.schema if writer else None)
            writer = writer or pq.ParquetWriter(scratch, table.schema)
            writer.write_table(table)
            rows.clear()

    try:
        yield add
        add(None)
        if writer:
            writer.close()
            scratch.replace(path)
        else:
            path.unlink(missing_ok=True)  # an earlier conversion's, whose rows may be in the other file now
    finally:
        scratch.unlink(missing_ok=True)


@contextlib.contextmanager
def text_file(path: Path) -> Iterator[TextIO]:
    """Yield a stream to a file that is there when it is complete."""
    scratch = path.with_name(f"{path.name}.part")
    try:
        with scratch.open("w", encoding="utf-8") as stream:
            yield stream
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


def convert(
    records: Iterator[Record],
    build: Callable[[Record, int, str], Row],
    *,
    name: str,
    screen: Screen,
    output: Path,
    val_fraction: float,
    extra: dict[str, Callable[[Record, Row], Iterable[dict[str, Any]]]] | None = None,
) -> Card:
    """Convert records to rows and write them with their card.

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
    output.mkdir(parents=True, exist_ok=True)
    card = Card(source=name)
    with contextlib.ExitStack() as stack:
        kept = stack.enter_context(TemporaryFile("w+", encoding="utf-8", dir=output))
        for where, record, row in _rows_of(records, build, name, screen, card):
            lines = {file: list(lines_of(record, row)) for file, lines_of in (extra or {}).items()}
            kept.write(json.dumps([where, row, lines]) + "\n")
        kept.seek(0)
        add = {split: stack.enter_context(parquet_file(output / f"{split}.parquet")) for split in SPLITS}
        others = {file: stack.enter_context(text_file(output / file)) for file in extra or {}}
        for where, row, lines in map(json.loads, kept):
            if screen.is_contradicted(row):  # which the last row of all may have shown
                card.drop(where, contradiction(row))
                continue
            place = zlib.crc32(json.dumps(row["prompt"]).encode()) / 2**32
            split = "val" if place < val_fraction else "train"
            add[split](row)
            card.kept[split] += 1
            for file, stream in others.items():
                stream.writelines(json.dumps(line) + "\n" for line in lines[file])
        if not card.kept:
            first = "; ".join(f"{reason}: {lines[0]}" for reason, lines in card.dropped.items())
            raise ValueError(f"no usable record of {card.num_read} (data source {name}); the first: {first}")
    (output / "card.md").write_text(card.text(), encoding="utf-8")
    return card


def _rows_of(
    records: Iterator[Record], build: Callable[[Record, int, str], Row], name: str, screen: Screen, card: Card
) -> Iterator[tuple[str, Record, Row]]:
    """Yield each record that makes a row, with where it stands and the row, and put the others on the card."""
    ids: set[str] = set()
    for index, record in enumerate(records):
        card.num_read += 1
        where = text_in(record, "problem_id") or getattr(record, "place", f"row {index + 1}")
        try:
            row = _row_of(build, record, index, name)
            screen.check(row)
        except Dropped as dropped:
            card.drop(where, dropped)
            continue
        own = row["extra_info"].get("problem_id")
        if own is not None and own in ids:  # a source that numbers the problems of each part from 0
            row["extra_info"]["problem_id"] = own = f"{own}/{index}"
        ids.add(own)
        yield where, record, row


def _row_of(build: Callable[[Record, int, str], Row], record: Record, index: int, name: str) -> Row:
    """Build a row; a record may hold anything, and what no reader expects costs no other record."""
    try:
        row = build(record, index, name)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Dropped("no Unicode", f"it holds a lone surrogate: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise Dropped("malformed", f"{type(error).__name__}: {error}") from error
    return row
