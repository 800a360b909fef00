"""Readers of raw records, one at a time, from a hub id, files, or APPS's own folders."""

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec

from recipe.data_preparation.cache import wrong_with_cache
from recipe.data_preparation.fields import Record
from reward.problem import read_json

FILES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")


def read_records(source: str, split: str, config: str | None = None) -> Iterator[Record]:
    """Yield the records of a source.

    Args:
        source: Folder of APPS problems (a folder each, with ``question.txt``, ``input_output.json``, ...), of data
            files, as a clone from the hub, or of ``save_to_disk``; a file of :data:`FILES`, also compressed; or the id
            of a data set on the hub.
        split: Split of a hub data set or a folder; also the sub-folder of an APPS folder, where there is one.
        config: Configuration of a hub data set or a clone that has several.

    Raises:
        ValueError: If there is nothing to read, or something is no record; it names the source.
    """
    path, is_empty = Path(source).expanduser(), True
    # Neither a file that is not there nor a name of a format is what the hub calls so.
    is_local = source.startswith(("/", ".", "~")) or _kind_of(path) in FILES or f".{source}" in FILES
    if is_local and not path.exists():
        raise ValueError(f"{source}: no such file or folder")
    try:
        for record in _records(path, source, split, config):
            is_empty = False
            yield record
    except Exception as error:  # each format's package has errors of its own
        said = str(error) if source in str(error) else f"{source}: {error.__cause__ or error}"
        if isinstance(error, UnicodeDecodeError):
            said += f"; save it as UTF-8, as in `iconv -f LATIN1 -t UTF-8 {source} > new{_kind_of(path)}`"
        wrong = wrong_with_cache() if isinstance(error.__cause__ or error, OSError) else None
        raise ValueError(f"{source}: {wrong}" if wrong else said) from error
    if is_empty:
        raise ValueError(f"{source}: no record in it")


def _records(path: Path, source: str, split: str, config: str | None) -> Iterator[Record]:
    kind = _kind_of(path)
    if problems := sorted((*path.glob(f"{split}/*/question.txt"), *path.glob("*/question.txt"))):
        yield from map(_apps_problem, (problem.parent for problem in problems))
    elif path.is_file() and path.suffix.lower() in (".parquet", ".arrow"):
        yield from _table_file(path)
    elif not path.is_file():
        dataset = _dataset(path, source, split, config)
        schema = dataset.features.arrow_schema if dataset.features else ()
        yield from _with_short_floats(dataset, schema)
    elif kind in FILES and kind not in (".parquet", ".arrow"):
        with fsspec.open(str(path), "rt", encoding="utf-8-sig", compression="infer", newline="") as file:
            yield from _json_lines(file, path) if kind.startswith(".json") else _table(file, path, kind)
    else:
        raise ValueError(f"give a file that ends in one of {', '.join(FILES)}, maybe compressed")


def _kind_of(path: Path) -> str:
    return (path if path.suffix not in _COMPRESSED else path.with_suffix("")).suffix.lower()


def _dataset(path: Path, source: str, split: str, config: str | None) -> Any:
    import datasets  # here: wrong options need not wait seconds for it

    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs what it raises as well

    if not (path / "state.json").is_file() and not (path / "dataset_dict.json").is_file():
        if path.is_dir() and not any(_kind_of(file) in FILES for file in (*path.glob("*"), *path.glob("*/*"))):
            # datasets would look through all folders below
            raise ValueError(f"{path}: no data file ({', '.join(FILES)}) in it, nor a folder with a question.txt")
        name = str(path.absolute()) if path.is_dir() else source
        dataset = datasets.load_dataset(name, config, split=split, streaming=True)
        return dataset.decode(False) if dataset.features else dataset  # pictures are refused, not read
    saved = datasets.load_from_disk(path)
    if isinstance(saved, dict) and split not in saved:
        raise ValueError(f"no split {split} in it: set --split to one of {', '.join(saved)}")
    return (saved[split] if isinstance(saved, dict) else saved).to_iterable_dataset().decode(False)


def _table_file(path: Path) -> Iterator[Record]:
    """Yield the rows of a file of Apache Arrow's, batch by batch, without a cache."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.stat().st_size:
        raise ValueError("the file is empty")
    if path.suffix.lower() == ".parquet":
        with pq.ParquetFile(path) as file:
            records = (record for batch in file.iter_batches(batch_size=1000) for record in batch.to_pylist())
            yield from _with_short_floats(records, file.schema_arrow)
        return
    with pa.memory_map(str(path)) as memory:
        try:
            batches: Any = pa.ipc.open_stream(memory)
        except pa.ArrowInvalid:  # the other of its two formats
            opened = pa.ipc.open_file(memory)
            batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
            schema = opened.schema
        else:
            schema = batches.schema
        yield from _with_short_floats((record for batch in batches for record in batch.to_pylist()), schema)


def _with_short_floats(records: Iterable[Record], schema: Any) -> Iterator[Record]:
    """Yield records whose floats of less than 64 bits are shortest decimals: 0.1, not 0.10000000149011612."""
    short = {field.name: field.type.to_pandas_dtype() for field in schema if str(field.type) in ("float", "halffloat")}
    for record in records:
        shorter = {name: float(str(kind(record[name]))) for name, kind in short.items() if record[name] is not None}
        yield {**record, **shorter}


def _json_lines(file: Iterable[str], path: Path) -> Iterator[Record]:
    """Yield the objects of JSON lines, or of one JSON list; their columns and types may differ."""
    lines = enumerate(file, start=1)
    for number, line in lines:
        text = line if not line.startswith("[") else "".join([line, *(more for _, more in lines)])
        value = read_json(text, f"{path} line {number}") if text.strip() else []
        for record in value if isinstance(value, list) else [value]:
            if not isinstance(record, dict):
                raise ValueError(f"{path} line {number}: it is {type(record).__name__}: give an object")
            yield record


def _table(file: Iterable[str], path: Path, kind: str) -> Iterator[Record]:
    """Yield a table's rows; ValueError for a row with too many cells, since an unquoted comma shifts all cells."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.DictReader(file, dialect="excel-tab" if kind == ".tsv" else "excel", strict=True)
    try:
        if twice := [name for name, number in Counter(rows.fieldnames or ()).items() if number > 1]:
            raise ValueError(f"{path}: several columns are named {', '.join(twice)}: rename all but one")
        for row in rows:
            if any(row.pop(None, [])):
                what = "more cells than columns: put quotes around a cell with a separator"
                raise ValueError(f"{path} line {rows.line_num}: {what}")
            yield {name: None if value in ("NaN", "nan") else value for name, value in row.items()}
    except csv.Error as error:
        raise ValueError(f"{path}, the row behind line {rows.line_num}: {error}") from error


def _apps_problem(folder: Path) -> Record:
    files = ("question.txt", "starter_code.py", "input_output.json", "solutions.json")
    record = {"problem_id": folder.name, **{file.partition(".")[0]: _text(folder / file) for file in files}}
    metadata = read_json(_text(folder / "metadata.json") or "{}", f"{folder}/metadata.json")
    return {**record, "difficulty": metadata.get("difficulty")}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from None
