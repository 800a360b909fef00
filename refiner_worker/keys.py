"""Reading a block of the config by a class whose fields are its keys. This module needs neither torch nor verl."""

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

from pydantic import ConfigDict, Field, ValidationError

Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Source = Annotated[str, Field(coerce_numbers_to_str=True)]
"""The name of a data source, a row's ``data_source``."""
Block = TypeVar("Block")
BLOCK: ConfigDict = {"extra": "forbid", "use_attribute_docstrings": True}
"""Settings of every block: a key that no field has is a mistake; the string below a field describes it."""


def from_key(key: str) -> Any:
    """Return the default of a field that is another key of the config, as Hydra writes it."""
    return f"${{{key}}}"


def nearest(name: Any, known: Collection[str]) -> str:
    """Return ``; did you mean X?``, where X is the known name that looks most like this one; nothing if none does.

    Example: ``nearest("grp0", ["gae", "grpo"])`` is ``"; did you mean grpo?"``.
    """
    found = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def what_lacks(said: str, wanted: Mapping[str, bool]) -> str | None:
    """Return one line that names the settings in ``wanted`` that do not hold; None if all hold."""
    lacking = [setting for setting, holds in wanted.items() if not holds]
    return f"{said}: set {'; '.join(lacking)}" if lacking else None


def read_keys(name: str, block_type: type[Block], values: dict[str, Any], chosen: str) -> Block:
    """Return a block of the config from its values by key; ``chosen`` says in messages what chose its class.

    Raises:
        ValueError: If a key is not one of the class's, or a value is of a wrong type or out of bounds: one line.
    """
    known = [field.name for field in fields(block_type) if field.init]  # type: ignore[arg-type]
    if unknown := sorted(values.keys() - set(known)):
        meant = nearest(unknown[0], known)
        raise ValueError(f"{name}.{unknown[0]} is not a key of {chosen}; its keys are: {', '.join(known)}{meant}")
    try:
        return block_type(**values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        if first["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
            raise ValueError(f"{chosen}: set {name}.{key}") from error
        of = get_type_hints(block_type, include_extras=True)[str(first["loc"][0])]
        or_null = ", or null" if type(None) in get_args(of) and len(first["loc"]) == 1 else ""
        meant = nearest(first["input"], re.findall("'([^']*)'", first.get("ctx", {}).get("expected", "")))
        said = first["msg"].removeprefix("Value error, ")  # of a validator of ours
        raise ValueError(f"{name}.{key}={first['input']}: {said}{or_null}{meant}") from error
