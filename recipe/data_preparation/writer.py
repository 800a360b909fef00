"""The writer of train.parquet, val.parquet, and the data card, which lists what was kept and dropped."""

import functools
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipe.data_preparation.fields import Dropped, Record, TrackedRecord, given, is_missing, text_in
from recipe.data_preparation.media import refuse_media
from recipe.data_preparation.rows import Build, Lines, Row, Screen, contradiction, is_verls

SPLITS = ("train", "val")
MAX_NAMES = 8
"""The largest number of columns that the summary names; the card names all."""


@dataclass(slots=True, kw_only=True)
class Card:
    """The counts of a conversion.

    Example: ``Card(source="apps", num_read=5, kept={"train": 4}, dropped={"no tests": ["0007"]})``.
    """

    source: str
    num_read: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    """The number of rows of each split."""
    dropped: dict[str, list[str]] = field(default_factory=dict)
    """The ids of dropped records by reason, each with the detail of its fault."""
    compared_as_text: list[str] = field(default_factory=list)
    """The ids of kept records whose expected answer no parser reads, each with the answer."""
    filled: Counter[str] = field(default_factory=Counter)
    """The number of records in which each column is not empty."""
    read: Counter[str] = field(default_factory=Counter)
    """The number of records in which each column was read."""
    empty: set[str] = field(default_factory=set)
    """The columns that are empty in some record."""

    def note(self, record: TrackedRecord) -> None:
        """Count the columns of a record that was converted or dropped."""
        filled = [column for column, value in record.items() if not is_missing(value)]
        self.filled.update(filled)
        self.empty.update(record.keys() - set(filled))
        self.read.update(column for column in filled if column in record.read)

    @property
    def not_read(self) -> list[str]:
        """The columns that are not empty and were read in no record."""
        return [column for column in self.filled if column not in self.read]

    @property
    def columns(self) -> list[str]:
        """All columns of the source."""
        return [*self.filled, *sorted(self.empty - self.filled.keys())]

    def drop(self, where: str, dropped: Dropped) -> None:
        """Count a record that is dropped."""
        line = " ".join(f"{where}: {dropped.detail}".split()) if dropped.detail else where
        self.dropped.setdefault(dropped.reason, []).append(line)

    def text(self) -> str:
        """Return the card as Markdown."""
        lines = [f"# {self.source}", "", f"{self.num_read} records read."]
        lines += [f"- {split}: {self.kept[split]} rows" for split in SPLITS]
        if self.read:
            lines += ["", "## Columns read", *(f"- {name}: {number} records" for name, number in self.read.items())]
        if self.not_read:
            lines += ["", "## Columns not read", *(f"- {name}: {self.filled[name]} records" for name in self.not_read)]
        for reason, ids in sorted(self.dropped.items()):
            lines += ["", f"## Dropped, {reason}: {len(ids)}", *(f"- {name}" for name in ids)]
        if self.compared_as_text:
            title = f"## Kept, the answer is compared as text: {len(self.compared_as_text)}"
            lines += ["", title, *(f"- {name}" for name in self.compared_as_text)]
        return "\n".join(lines) + "\n"

    def summary(self, *, can_ask: bool = False) -> str:
        """Return one line for the terminal; ``can_ask``: whether --question can add a column to the question."""
        drops = ", ".join(f"{len(ids)} {reason}" for reason, ids in sorted(self.dropped.items())) or "none"
        kept = ", ".join(f"{self.kept[split]} {split}" for split in SPLITS)
        empty = "" if self.kept["val"] else "; data.val_files needs rows: raise --val-fraction or prepare another split"
        number = len(self.compared_as_text)
        as_text = f"; {number} answer{' is' if number == 1 else 's are'} compared as text" if number else ""
        return f"{self.num_read} records: {kept}; dropped: {drops}{self._left(can_ask)}{as_text}{empty}"

    def _left(self, can_ask: bool) -> str:
        names = [name if name.strip() else repr(name) for name in self.not_read]
        if not names:
            return ""
        more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
        ask = ", --question NAME,NAME joins several to one question" if can_ask else ""
        return f"; columns not read: {', '.join(names[:MAX_NAMES])}{more} (--keep NAME puts one in extra_info{ask})"


def convert(
    records: Iterator[Record],
    build: Build,
    *,
    name: str,
    screen: Screen,
    output: Path,
    val_fraction: float,
    extra: Mapping[str, Lines],
    keep: Sequence[str] = (),
    renamed: bool = True,
) -> Card:
    """Convert all records to rows, then write the rows and their card.

    Args:
        records: The records of the source.
        build: A function that makes a row from a record, such as ``apps_row``, or raises ``Dropped``.
        name: The rows' ``data_source``.
        screen: The filter that drops duplicates and overlaps.
        output: The folder for train.parquet, val.parquet, card.md and the extra files.
        val_fraction: The share of rows for val.parquet, chosen by a hash of the prompt: the same in every run.
        extra: The names of JSON lines files, each with the function that makes their objects from a kept record.
        keep: The columns that are copied to ``extra_info``.
        renamed: Whether rows that are in verl's schema already get ``name`` too, in place of their ``data_source``.

    Raises:
        ValueError: If no row is left, a column to keep does not exist, or parquet cannot hold a column.
    """
    card = Card(source=name)
    rows: dict[str, list[Row]] = {split: [] for split in SPLITS}
    lines: dict[str, list[str]] = {file: [] for file in extra}
    build = functools.partial(_with_own_fields, build, keep, renamed)
    for where, row, of_row, identity in list(_rows_of(records, build, name, screen, card, extra)):
        if identity in screen.contradicted:  # which the last row of all may have shown
            card.drop(where, contradiction(row))
            continue
        images = b"".join(image["bytes"] for image in row.get("images", ()))
        place = zlib.crc32(json.dumps(row["prompt"]).encode() + images) / 2**32
        rows["val" if place < val_fraction else "train"].append(row)
        for file, texts in of_row.items():
            lines[file] += texts
    if not any(rows.values()):
        first = "; ".join(f"{reason}: {ids[0]}" for reason, ids in card.dropped.items())
        raise ValueError(f"no usable record of {card.num_read} (data source {name}); the first: {first}")
    infos = [row["extra_info"] for kept in rows.values() for row in kept]
    if unknown := [column for column in keep if all(is_missing(info.get(column)) for info in infos)]:
        there = ", ".join(card.columns)
        raise ValueError(f"--keep {','.join(unknown)}: no such column, or nothing in it; there are {there}")
    card.kept.update({split: len(kept) for split, kept in rows.items()})
    _write(output, rows, {**lines, "card.md": [card.text()]})
    return card


def _write(output: Path, rows: Mapping[str, Sequence[Row]], lines: Mapping[str, Sequence[str]]) -> None:
    """Write the rows of each split and the lines of each file; nothing if parquet cannot hold the rows."""
    import pyarrow.parquet as pq

    tables = {split: _table_of(kept) for split, kept in rows.items() if kept}
    output.mkdir(parents=True, exist_ok=True)
    for split in rows:
        path = output / f"{split}.parquet"
        path.unlink(missing_ok=True)  # an earlier conversion's, whose rows may be in the other file now
        if split in tables:
            pq.write_table(tables[split], path)
    for file, texts in lines.items():
        (output / file).write_text("".join(texts), encoding="utf-8")


def _rows_of(
    records: Iterator[Record],
    build: Build,
    name: str,
    screen: Screen,
    card: Card,
    extra: Mapping[str, Lines],
) -> Iterator[tuple[str, Row, dict[str, list[str]], int]]:
    """Yield the place, row, lines and question's identity of each record that makes a row; note the others."""
    ids: set[str] = set()
    for index, untracked in enumerate(records):
        card.num_read += 1
        record = TrackedRecord(untracked)
        where = text_in(untracked, "problem_id") or f"row {index + 1}"
        try:
            row = _row_of(build, record, index, name)
            identity = screen.check(row)
            if is_verls(record):
                row["ability"] = text_in(record, "ability") or row["ability"]
        except Dropped as dropped:
            card.drop(where, dropped)
            continue
        finally:
            card.note(record)
        if row["extra_info"].get("compared_as") == "text":
            card.compared_as_text.append(" ".join(f"{where}: {row['reward_model']['ground_truth'][:80]}".split()))
        own = row["extra_info"].get("problem_id")
        if own is not None and own in ids:  # a source that numbers the problems of each part from 0
            row["extra_info"]["problem_id"] = own = f"{own}/{index}"
        ids.add(own)
        of_row = {file: [json.dumps(line) + "\n" for line in of(record, row)] for file, of in extra.items()}
        yield where, row, of_row, identity


def _with_own_fields(build: Build, keep: Sequence[str], renamed: bool, record: Record, index: int, name: str) -> Row:
    """Build a row that also has the record's ``extra_info``, the columns to keep, and verl's ``data_source``."""
    row = build(record, index, name)
    has_links = row["ability"] in ("math", "own")
    refuse_media(record, row["prompt"], with_links=has_links, has_images="images" in row)
    info = given(record, "extra_info") if isinstance(record.get("extra_info"), dict) else None
    own = {**(info or {}), **{column: given(record, column) for column in keep}}
    ours = {key: value for key, value in row["extra_info"].items() if key not in own or not is_missing(value)}
    if not is_missing(own.get("index")):
        del ours["index"]
    row["extra_info"] = {**_storable(own or {}), **ours} if own else ours
    if is_verls(record) and not renamed:
        row["data_source"] = text_in(record, "data_source") or name
    return row


def _storable(value: Any) -> Any:
    """Return a value with null for each empty object, which parquet has no type for."""
    if isinstance(value, dict):
        return {key: _storable(inner) for key, inner in value.items()} or None
    return [_storable(inner) for inner in value] if isinstance(value, list) else value


def _table_of(rows: Sequence[Row]) -> Any:
    """Build the table of rows; ValueError names a field of ``extra_info`` whose values differ in type."""
    import pyarrow as pa

    try:
        return pa.Table.from_pylist(list(rows))
    except (pa.ArrowException, OverflowError) as error:
        infos = [row["extra_info"] for row in rows]
        for name in dict.fromkeys(key for info in infos for key in info):
            kinds = sorted({type(info[name]).__name__ for info in infos if info.get(name) is not None})
            if len(kinds) > 1:
                message = f"extra_info has values of several types in {name} ({', '.join(kinds)}): give one type"
                raise ValueError(message) from error
        raise ValueError(f"parquet cannot hold these rows: {error}") from error


def _row_of(build: Build, record: Record, index: int, name: str) -> Row:
    """Build a row; a record with unexpected content is dropped, and does not end the conversion."""
    try:
        row = build(record, index, name)
        json.dumps(row, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise Dropped("no Unicode", f"it holds a lone surrogate: {error}") from error
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise Dropped("malformed", f"{type(error).__name__}: {error}") from error
    return row
