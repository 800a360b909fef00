"""Values as text, into the sandbox (arguments) and out of it (what a call returned or raised).

The text is JSON. Scalars and lists stand for themselves; a value of any other type is an object with one key, its type:
`(1, {2})` is `{"tuple": [1, {"set": [2]}]}`. Only exact built-in types count; an instance of a subclass, whose methods
a hostile program can choose, is written as the plain value inside it, so that no `__eq__` or `__repr__` of the program
ever decides anything. Reading untrusted text takes time and memory: outside the sandbox only a judge does it.

Of the library's types Counter, OrderedDict, deque, Decimal, Fraction, date, datetime and time (of a fixed offset, if
any) and timedelta count as built in, and defaultdict where a built-in type makes its defaults.
"""

import builtins
import contextlib
import importlib
import json
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring_ascii
from typing import Any, NoReturn

from reward.sandbox.jail.iterators import iterator_text, leave_at, replayed

_LONG_BITS = 10_000  # the time for decimal digits grows with the square of their number
_numbers: dict[int, int] = {}  # by id: of objects that both sides of a call have
CONTAINERS = (list, tuple, dict, set, deque, bytearray)
"""What may be changed in place, or hold what may."""
ERRORS = (Exception, SystemExit)
"""What test code may expect of a call."""
_WITH_POSITIONS = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)
_VIEWS: dict[str, Any] = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
_COLLECTIONS: tuple[type, ...] = (tuple, set, frozenset, deque)
_LENGTH: Any = deque.__dict__["maxlen"]
_MAKER: Any = defaultdict.__dict__["default_factory"]  # the type's own attribute, whatever a subclass makes of it
_MAKERS: dict[str, Any] = {kind.__name__: kind for kind in (int, float, bool, str, list, tuple, set, dict)}
"""What may make the defaults of a defaultdict that comes back as one."""
LIBRARY: dict[tuple[str, str], tuple[str, ...]] = {
    ("decimal", "Decimal"): ("__str__",),
    ("fractions", "Fraction"): ("numerator", "denominator"),
    ("datetime", "timedelta"): ("days", "seconds", "microseconds"),
    ("datetime", "timezone"): ("__getinitargs__",),
    ("datetime", "datetime"): ("year", "month", "day", "hour", "minute", "second", "microsecond", "tzinfo"),
    ("datetime", "date"): ("year", "month", "day"),
    ("datetime", "time"): ("hour", "minute", "second", "microsecond", "tzinfo"),
}
"""By module and type: attributes of which its values are made, in the order of its arguments. These modules are looked
for among those that the program has loaded: every fork costs what is loaded."""


class Known:
    """Stands for an object that both sides of a call have."""

    def __init__(self, number: int) -> None:
        """Stand for the object of this number."""
        self.number = number


class Untold:
    """Stands for what no text can tell."""


class NanError(Exception):
    """A value is, or holds, what is not a number."""


def to_text(value: Any) -> str:
    """The value as JSON text.

    Other defaultdicts become dict, which they equal, named tuples tuple, numpy's scalars the numbers that they are. An
    iterator is run to its end, or to an exception, which is part of the text.

    Raises:
        TypeError: the value is of another type.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    if _numbers and id(value) in _numbers:
        return f'{{"known": {_numbers[id(value)]}}}'
    return _contents_text(value)


def _contents_text(value: Any) -> str:
    if isinstance(value, int) and int.bit_length(value) > _LONG_BITS:
        return f'{{"int": "{int.__format__(value, "x")}"}}'
    scalar = _scalar(value)
    if scalar is not None:
        return scalar
    if isinstance(value, list):
        return f"[{_joined(list.__iter__(value))}]"
    if isinstance(value, dict):
        return _dict_text(value)
    kind: Any
    if isinstance(value, deque) and (length := _LENGTH.__get__(value)) is not None:
        return f'{{"bounded": [[{_joined(deque.__iter__(value))}], {length}]}}'
    for kind in _COLLECTIONS:
        if isinstance(value, kind):
            return f'{{"{kind.__name__}": [{_joined(kind.__iter__(value))}]}}'
    if isinstance(value, (bytes, bytearray)):
        return f'{{"{"bytes" if isinstance(value, bytes) else "bytearray"}": "{bytes(value).hex()}"}}'
    if isinstance(value, complex):
        return f'{{"complex": [{to_text(value.real)}, {to_text(value.imag)}]}}'
    if isinstance(value, range):
        return f'{{"range": [{value.start}, {value.stop}, {value.step}]}}'
    if isinstance(value, Exception):
        return error_text(value)
    for name, view in _VIEWS.items():
        if isinstance(value, view):
            return f'{{"{name}": [{_joined(value)}]}}'
    for (module, name), attributes in LIBRARY.items():
        library_type = getattr(sys.modules.get(module), name, None)
        if isinstance(library_type, type) and isinstance(value, library_type):
            return f'{{"{name}": [{_joined(_parts(library_type, attributes, value))}]}}'
    if isinstance(value, Iterator):
        return iterator_text(value, to_text, error_text)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return to_text(value.item())
    if isinstance(value, (Known, Untold)):
        return f'{{"known": {value.number}}}' if isinstance(value, Known) else '{"untold": []}'
    raise TypeError(f"{type(value).__name__} is no built-in type")


def from_text(
    text: str | bytes,
    known: Callable[[Any], Any] | None = None,
    read_on: Callable[[], NoReturn] | None = None,
    *,
    with_nan: bool = True,
) -> Any:
    """The value of which `to_text` gave the text; iterators give their items, then raise what ended them.

    Args:
        text: untrusted.
        known: gives the objects that the text has by their numbers; LookupError, TypeError: it has no such number.
        read_on: called where an iterator that was left for its time is read to the end of its items.
        with_nan: whether a value may be, or hold, what is not a number.

    Raises:
        NanError: it may not, and does.
        ValueError: it is no such text.
        RecursionError: it is nested too deeply.
    """

    def from_object(tagged: dict[str, Any]) -> Any:
        try:
            ((kind, content),) = tagged.items()
            if kind == "iterator":
                items, ending = content
                return replayed(items, ending, read_on)
            value = known(content) if known is not None and kind == "known" else _FROM_CONTENT[kind](content)
            return checked(value) if kind in ("complex", "Decimal") else value
        except (TypeError, LookupError, AttributeError, ArithmeticError, SystemError) as error:
            raise ValueError(f"not a value as text ({error})") from error

    def checked(number: Any) -> Any:
        if not with_nan and number != number:
            raise NanError
        return number

    return json.loads(text, object_hook=from_object, parse_constant=lambda name: checked(float(name)))


def arguments_text(positional: Iterable[Any], keywords: dict[str, Any] | None = None) -> str:
    """The arguments of a call as text; errors as `to_text`."""
    return to_text([list(positional), keywords or {}])


def begin_call(objects: Iterable[object], iterators_end: tuple[float, float, int]) -> None:
    """Write these objects by their numbers from now on, and leave iterators at this end.

    The end: the arguments of ``iterators.leave_at``.
    """
    global _numbers
    _numbers = {id(value): number for number, value in enumerate(objects)}
    leave_at(*iterators_end)


def contents_text(value: Any) -> str:
    """A container that has a number as text, as `to_text` without it; what cannot be told in it is `Untold`."""
    try:
        return _contents_text(value)
    except (TypeError, RecursionError):
        if isinstance(value, dict):
            return _contents_text({_told(key): _told(item) for key, item in dict.items(value)})
        return _contents_text([_told(item) for item in value] if isinstance(value, list) else deque(map(_told, value)))


def _told(value: Any) -> Any:
    try:
        to_text(value)
    except (TypeError, RecursionError):
        return Untold()
    return value


def _joined(items: Iterable[object]) -> str:
    return ", ".join([to_text(item) for item in items])


def _dict_text(value: dict) -> str:
    keys = OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value)
    pairs = ", ".join([f"[{to_text(key)}, {to_text(dict.__getitem__(value, key))}]" for key in keys])
    if isinstance(value, OrderedDict):
        return f'{{"OrderedDict": [{pairs}]}}'
    if isinstance(value, Counter):
        return f'{{"Counter": [{pairs}]}}'
    if isinstance(value, defaultdict):
        maker = _MAKER.__get__(value)
        for name, kind in _MAKERS.items():
            if maker is kind:
                return f'{{"defaultdict": ["{name}", [{pairs}]]}}'
    return f'{{"dict": [{pairs}]}}'


def _parts(library_type: type, attributes: tuple[str, ...], value: Any) -> Iterator:
    """The type's own attributes of the value, whatever a subclass makes of them."""
    for name in attributes:
        part = getattr(library_type, name).__get__(value)
        yield part() if name.startswith("__") else part


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


def error_text(error: BaseException) -> str:
    """`{"error": [names of its built-in classes, arguments, its text, if any]}`."""
    parts = [to_text([one.__name__ for one in type(error).__mro__ if one.__module__ == "builtins"]), "[]", "null"]
    for index, part in ((1, lambda: list(error.args)), (2, lambda: str(error))):
        with contextlib.suppress(Exception):  # untrusted: arguments of foreign types, or no tuple at all
            parts[index] = to_text(part())
    return f'{{"error": [{", ".join(parts)}]}}'


def _error(content: list) -> BaseException:
    names, arguments, text = content
    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, ERRORS):
            try:
                error = kind(*arguments)
                if isinstance(error, _WITH_POSITIONS) and not 0 <= error.start <= error.end <= len(error.object):
                    continue  # its text would come from memory that is not its object's
                own = {"__str__": lambda _: text}  # as a class of the answer's says it
                return error if text in (None, str(error)) else type(name, (kind,), own)(*arguments)
            except TypeError:  # it wants other arguments, as UnicodeDecodeError does
                continue
    return Exception(*arguments)


def _of_library(module: str, name: str) -> Callable[[list], Any]:
    return lambda parts: getattr(importlib.import_module(module), name)(*parts)


def _fraction(parts: list) -> Any:
    if not all(type(part) is int for part in parts):  # a text's exponent may take any time
        raise TypeError("a fraction of other than integers")
    return importlib.import_module("fractions").Fraction(*parts)


_FROM_CONTENT: dict[str, Callable[[Any], Any]] = {
    "int": lambda digits: int(digits, 16),
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "bounded": lambda content: deque(*content),
    "dict": dict,
    "OrderedDict": OrderedDict,
    "untold": lambda _: Untold(),
    "Counter": lambda pairs: Counter(dict(pairs)),
    "defaultdict": lambda content: defaultdict(_MAKERS[content[0]], content[1]),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "keys": lambda keys: dict.fromkeys(keys).keys(),
    "values": lambda values: dict(enumerate(values)).values(),
    "items": lambda pairs: dict(pairs).items(),
    "error": _error,
    **{name: _of_library(module, name) for module, name in LIBRARY},
    "Fraction": _fraction,
    "timezone": lambda parts: importlib.import_module("datetime").timezone(*parts[0]),
}
