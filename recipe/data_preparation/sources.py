"""Raw records of a data set: a hub id, a file, or APPS's own folders. Read one at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FORMATS = {".json": "json", ".jsonl": "json", ".gz": "json", ".parquet": "parquet"}
_OF_CLONES = (".jsonl", ".parquet")  # APPS's own folders have json files

Record = dict[str, Any]


def read_records(source: str, split: str, config: str | None = None) -> Iterator[Record]:
    """Yield the records of a source.

    Args:
        source: Folder of APPS problems (a folder each, with ``question.txt``, ``input_output.json``, ...) or of data
            files, as a clone from the hub; a json, jsonl or parquet file (also compressed); or the id of a data set on
            the hub.
        split: Split of a hub data set or a clone; also the sub-folder of an APPS folder, where there is one.
        config: Configuration of a hub data set or a clone that has several.

    Raises:
        ValueError: If there is nothing to read.
    """
    path = Path(source).expanduser()
    if path.is_dir() and not any(file.suffix in _OF_CLONES for file in (*path.glob("*"), *path.glob("*/*"))):
        yield from _apps_folders(path / split if (path / split).is_dir() else path)
        return
    import datasets  # here: wrong options need not wait seconds for it

    if path.is_file():
        if path.suffix not in FORMATS:
            raise ValueError(f"{path}: give a file that ends in one of {', '.join(FORMATS)}")
        yield from datasets.load_dataset(FORMATS[path.suffix], data_files=str(path), split="train", streaming=True)
        return
    if source.startswith(("/", ".", "~")) and not path.is_dir():
        raise ValueError(f"{source}: no such file or folder")
    yield from datasets.load_dataset(str(path) if path.is_dir() else source, config, split=split, streaming=True)


def _apps_folders(root: Path) -> Iterator[Record]:
    folders = sorted(path.parent for path in root.glob("*/question.txt"))
    if not folders:
        raise ValueError(f"{root}: no folder in it has a question.txt; give the folder that holds APPS's problems")
    for folder in folders:
        record: Record = {"problem_id": folder.name}
        for name, file in (("question", "question.txt"), ("starter_code", "starter_code.py")):
            record[name] = _text(folder / file)
        for name in ("input_output", "solutions"):
            record[name] = _text(folder / f"{name}.json")
        metadata = json.loads(_text(folder / "metadata.json") or "{}")
        yield {**record, "difficulty": metadata.get("difficulty", ""), "url": metadata.get("url", "")}


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
