"""Values of calls as text: `ENCODERS` write them in the sandbox, `DECODERS` read them in the trusted process.

Only exact built-in types count; an instance of a subclass, whose methods a hostile program can choose, is written as
the plain value inside it, so that no `__eq__` or `__repr__` of the program ever decides anything.
"""

import math
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any

_LONG_BITS = 10_000


def to_json(value: object) -> str:
    """What json.dumps gives, for the plain types (tuples become lists, keys become text).

    Raises:
        TypeError: the value is of another type.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, (list, tuple)):
        iterator = list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value)
        return "[" + ", ".join([to_json(item) for item in iterator]) + "]"
    if isinstance(value, dict):
        items = []
        for key, item in dict.items(value):
            name = encode_basestring_ascii(key) if isinstance(key, str) else encode_basestring_ascii(to_json(key))
            items.append(f"{name}: {to_json(item)}")
        return "{" + ", ".join(items) + "}"
    raise TypeError(f"{type(value).__name__} is no plain JSON type")


def to_tagged_json(value: object) -> str:
    """As JSON that keeps Python's types: scalars as they are, every other value as [type name, content].

    Counter, defaultdict and OrderedDict become dict, which they equal. Long integers are written in hexadecimal: the
    time for decimal digits grows with the square of their number, and Python reads no more than 4300 of them.

    Raises:
        TypeError: the value is of another type.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    if isinstance(value, int) and int.bit_length(value) > _LONG_BITS:
        return f'["int", "{int.__format__(value, "x")}"]'
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, dict):
        pairs = [f"[{to_tagged_json(key)}, {to_tagged_json(item)}]" for key, item in dict.items(value)]
        return f'["dict", [{", ".join(pairs)}]]'
    kinds: tuple[Any, ...] = (list, tuple, set, frozenset)
    for kind in kinds:
        if isinstance(value, kind):
            items = ", ".join([to_tagged_json(item) for item in kind.__iter__(value)])
            return f'["{kind.__name__}", [{items}]]'
    if isinstance(value, complex):
        return f'["complex", [{to_json(value.real)}, {to_json(value.imag)}]]'
    if isinstance(value, (bytes, bytearray)):
        return f'["{"bytes" if isinstance(value, bytes) else "bytearray"}", {list(value)}]'
    raise TypeError(f"{type(value).__name__} is no built-in type")


ENCODERS: dict[str, Callable[[object], str]] = {"json": to_json, "tagged": to_tagged_json}


def _scalar(value: object) -> str | None:
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, str):
        return encode_basestring_ascii(str.__str__(value))
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        number = float.__float__(value)
        if math.isfinite(number):
            return float.__repr__(number)
        return "NaN" if math.isnan(number) else ("Infinity" if float.__gt__(number, 0.0) else "-Infinity")
    return None


_FROM_LIST: dict[str, Callable[[list], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "complex": lambda parts: complex(*parts),
}
_FROM_BYTES: dict[str, Callable[[list], Any]] = {"bytes": bytes, "bytearray": bytearray}


def untag(value: Any) -> Any:
    """Undo `to_tagged_json`, from parsed JSON that is untrusted.

    Raises:
        ValueError: it is not what that writes.
        RecursionError: it is nested too deeply.
    """
    if not isinstance(value, (list, dict)):
        return value
    try:
        kind, content = value
        if kind == "int":
            return int(content, 16)
        if kind in _FROM_BYTES:
            return _FROM_BYTES[kind](content)
        if kind == "dict":
            return {untag(key): untag(item) for key, item in content}
        return _FROM_LIST[kind]([untag(item) for item in content])
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a tagged value ({error})") from error


DECODERS: dict[str, Callable[[Any], Any]] = {"json": lambda value: value, "tagged": untag}
