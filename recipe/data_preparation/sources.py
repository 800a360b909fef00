"""Raw records of a data set: a hub id, files, or APPS's own folders. Read one at a time."""

import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec

from recipe.data_preparation.fields import BROKEN, Placed, Record
from reward.problem import read_json

_LISTS = ("data", "rows", "records", "examples")
"""Under what a JSON object holds its records."""


def read_records(source: str, split: str, config: str | None = None) -> Iterator[Record]:
    """Yield the records of a source.

    Args:
        source: Folder of APPS problems (a folder each, with ``question.txt``, ``input_output.json``, ...), of data
            files, as a clone from the hub, or of ``save_to_disk``; a file of :data:`READERS`, also compressed; or the
            id of a data set on the hub.
        split: Split of a hub data set or a folder; also the sub-folder of an APPS folder, where there is one.
        config: Configuration of a hub data set or a clone that has several.

    Raises:
        ValueError: If there is nothing to read, or something is no record; it names the file.
    """
    path = Path(source).expanduser()
    records = _of_folder(path, split, config) if path.is_dir() else _of_file(path, split)
    if not path.exists():
        if source.startswith(("/", ".", "~")) or f".{source}" in READERS:  # not what datasets calls so
            raise ValueError(f"{source}: no such file or folder")
        import datasets  # here: wrong options need not wait seconds for it

        records = _of_dataset(datasets.load_dataset(source, config, split=split, streaming=True))
    number = 0
    for number, record in enumerate(records, start=1):  # noqa: B007
        yield record
    if not number:
        raise ValueError(f"{source}: no record in it")


def _of_folder(path: Path, split: str, config: str | None) -> Iterator[Record]:
    problems = sorted((*path.glob(f"{split}/*/question.txt"), *path.glob("*/question.txt")))
    if problems:
        yield from map(_apps_problem, (problem.parent for problem in problems))
        return
    import datasets

    if not any(_kind_of(file) in READERS for file in (*path.glob("*"), *path.glob("*/*"))):
        raise ValueError(
            f"{path}: no data file ({', '.join(READERS)}) in it, nor a folder with a question.txt; for APPS give the "
            "folder that holds APPS's problems"
        )
    files = datasets.load_dataset_builder(str(path.absolute()), config).config.data_files
    if split not in files:
        raise ValueError(f"{path}: no split {split} in it: set --split to one of {', '.join(map(str, files))}")
    for file in files[split]:
        yield from _of_file(Path(file), split)


def _of_file(path: Path, split: str) -> Iterator[Record]:
    kind = _kind_of(path)
    if kind not in READERS:
        raise ValueError(f"{path}: give a file that ends in one of {', '.join(READERS)}, maybe compressed")
    try:
        yield from READERS[kind](path, split)
    except UnicodeDecodeError as error:
        raise _no_utf8(path, error) from error
    except Exception as error:  # each format's package has errors of its own
        raise ValueError(str(error) if str(path) in str(error) else f"{path}: {error}") from error


def _kind_of(path: Path) -> str:
    name = path if path.suffix not in (".gz", ".bz2", ".xz", ".zst") else path.with_suffix("")
    return name.suffix.lower()


def _opened(path: Path) -> Any:
    return fsspec.open(str(path), "rt", encoding="utf-8-sig", compression="infer", newline="")


def _json_lines(path: Path, split: str) -> Iterator[Record]:
    with _opened(path) as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield _as_record(read_json(line, f"{path} line {number}"), path, f"line {number}")


def _json(path: Path, split: str) -> Iterator[Record]:
    """A list of objects, or an object that has it by the split's name or as its data; else lines of objects."""
    with _opened(path) as file:
        try:
            value = json.load(file)
        except (ValueError, RecursionError):  # more than one value, or none
            yield from _json_lines(path, split)
            return
    if isinstance(value, dict):
        value = next((value[key] for key in (split, *_LISTS) if isinstance(value.get(key), list)), [value])
    if not isinstance(value, list):
        raise ValueError(f"{path}: give a list of objects, or an object a line")
    yield from (_as_record(one, path, f"entry {number}") for number, one in enumerate(value, start=1))


def _as_record(value: Any, path: Path, place: str) -> Record:
    if not isinstance(value, dict):
        raise ValueError(f"{path} {place}: it is {type(value).__name__}: give an object for each record")
    return Placed.at(f"{path.name} {place}", value)


def _table(path: Path, split: str) -> Iterator[Record]:
    """Each row by its columns; one that is not what the columns say is BROKEN, and costs no other row."""
    csv.field_size_limit(sys.maxsize)
    with _opened(path) as file:
        rows = csv.reader(file, "excel-tab" if _kind_of(path) == ".tsv" else "excel", strict=True)
        names = next(filter(None, rows), [])
        while True:
            start = rows.line_num + 1
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if "end of data" in str(error):
                    raise ValueError(f"{path} line {start}: a quote that opens in this row is never closed") from error
                where = f"line {start}" if start == rows.line_num else f"lines {start} to {rows.line_num}, one row"
                wrong = f"{where}: {error}: close each quote, and write one within quotes twice"
                yield Placed.at(path.name, {BROKEN: wrong})
                continue
            if any(cells[len(names) :]):
                what = f"it has {len(cells)} cells for {len(names)} columns: put quotes around a cell with a separator"
                yield Placed.at(path.name, {BROKEN: f"line {start}: {what}"})
            elif cells:
                columns = {**dict.fromkeys(names), **dict(zip(names, cells, strict=False))}
                yield Placed.at(f"{path.name} line {start}", columns)


def _parquet(path: Path, split: str) -> Iterator[Record]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    yield from _as_written((row for batch in file.iter_batches() for row in batch.to_pylist()), file.schema_arrow)


def _arrow(path: Path, split: str) -> Iterator[Record]:
    """As ``save_to_disk`` writes them."""
    import datasets

    yield from _of_dataset(datasets.Dataset.from_file(str(path)))


def _of_dataset(dataset: Any) -> Iterator[Record]:
    yield from _as_written(dataset, dataset.features.arrow_schema if dataset.features else ())


def _as_written(records: Iterable[Record], schema: Iterable[Any]) -> Iterator[Record]:
    """Floats of less than 64 bits are the shortest decimals that they stand for: 0.1, not 0.10000000149011612."""
    short = {field.name: field.type.to_pandas_dtype() for field in schema if str(field.type) in ("float", "halffloat")}
    for record in records:
        shorter = {name: float(str(kind(record[name]))) for name, kind in short.items() if record[name] is not None}
        yield {**record, **shorter}


READERS: dict[str, Callable[[Path, str], Iterator[Record]]] = {
    ".jsonl": _json_lines,
    ".json": _json,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".csv": _table,
    ".tsv": _table,
}
"""By the end of a file's name."""


def _apps_problem(folder: Path) -> Record:
    files = ("question.txt", "starter_code.py", "input_output.json", "solutions.json")
    record = {"problem_id": folder.name, **{file.partition(".")[0]: _text(folder / file) for file in files}}
    metadata = read_json(_text(folder / "metadata.json") or "{}", f"{folder}/metadata.json")
    return {**record, "difficulty": metadata.get("difficulty")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise _no_utf8(path, error) from error


def _no_utf8(path: Path, error: UnicodeDecodeError) -> ValueError:
    return ValueError(f"{path} is no text in UTF-8 ({error}): give UTF-8")
