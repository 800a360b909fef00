"""JSON lines, plain or gzipped, with the place of every object for error messages."""

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, object) for every line that is not blank; a file that ends in ``.gz`` is unpacked.

    Raises:
        ValueError: If a line is no JSON object, or the file no text.
        OSError: If the file cannot be read, or is no gzip file.
    """
    with path.open("rb") as file:
        lines = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
        try:
            for number, line in enumerate(io.TextIOWrapper(lines, encoding="utf-8"), start=1):
                if line.strip():
                    yield f"{path} line {number}", _object(line, f"{path} line {number}")
        except (EOFError, UnicodeDecodeError, zlib.error) as error:
            raise ValueError(f"{path}: {error}: give JSON lines in UTF-8, gzipped if the name ends in .gz") from error


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({error}): give one object a line") from error
    if not isinstance(value, dict):
        raise ValueError(f"{where}: not an object: give one object a line")
    return value
