"""Calls in the sandbox, and the text form of their arguments and results.

The text is JSON. Scalars and lists stand for themselves; a value of any other type is an object with one key, its type:
`(1, {2})` is `{"tuple": [1, {"set": [2]}]}`. Only exact built-in types count; an instance of a subclass, whose methods
a hostile program can choose, is written as the plain value inside it, so that no `__eq__` or `__repr__` of the program
ever decides anything. Reading untrusted text takes time and memory: outside the sandbox only a judge does it.

The standard library's types in `LIBRARY`, Counter, OrderedDict and deque are treated as built in.
"""

import builtins
import contextlib
import importlib
import json
import math
import sys
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from json.encoder import encode_basestring_ascii
from typing import Any

_LONG_BITS = 10_000  # the time for decimal digits grows with the square of their number
_MAX_ITEMS = 100_000  # of an iterator
_characters_left = math.inf  # that all iterators together may still take as text
CONTAINERS = (list, tuple, dict, set, deque, bytearray)
"""Types that can be changed in place, or hold values that can."""
ERRORS = (Exception, SystemExit)
"""Exceptions that test code may expect a call to raise."""
_VIEWS: Any = (type({}.keys()), type({}.values()), type({}.items()))
LIBRARY: dict[tuple[str, str], tuple[str, ...]] = {
    ("decimal", "Decimal"): ("__str__",),
    ("fractions", "Fraction"): ("numerator", "denominator"),
    ("datetime", "timedelta"): ("days", "seconds", "microseconds"),
    ("datetime", "timezone"): ("__getinitargs__",),
    ("datetime", "datetime"): ("year", "month", "day", "hour", "minute", "second", "microsecond", "tzinfo"),
    ("datetime", "date"): ("year", "month", "day"),
    ("datetime", "time"): ("hour", "minute", "second", "microsecond", "tzinfo"),
}
"""The attributes from which a value of (module, type) can be made again, in the order of the type's arguments.

The modules are looked up among those that the program has loaded, because each loaded module makes every fork slower.
"""


class NanError(Exception):
    """A value is nan, or holds nan."""


def to_text(value: Any) -> str:
    """Return the value as JSON text.

    A defaultdict becomes dict, views of a dict list, named tuples tuple, numpy's scalars the numbers that they are.
    An iterator is run to its end, or to an exception, which is part of the text.

    Raises:
        TypeError: the value is of another type.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    if value is None or value is True or value is False:
        return json.dumps(value)
    if isinstance(value, str):
        return encode_basestring_ascii(str.__str__(value))
    if isinstance(value, int):
        is_long = int.bit_length(value) > _LONG_BITS
        return f'{{"int": "{int.__format__(value, "x")}"}}' if is_long else int.__repr__(value)
    if isinstance(value, float):
        return json.dumps(float.__float__(value))
    if isinstance(value, list):
        return f"[{_joined(list.__iter__(value))}]"
    if isinstance(value, dict):
        return _dict_text(value)
    kind: Any
    for kind in (tuple, set, frozenset, deque):
        if isinstance(value, kind):
            return _tagged(kind.__name__, kind.__iter__(value))
    for kind in (bytes, bytearray):
        if isinstance(value, kind):
            return f'{{"{kind.__name__}": "{bytes(value).hex()}"}}'
    if isinstance(value, complex):
        return _tagged("complex", (value.real, value.imag))
    if isinstance(value, range):
        return _tagged("range", (value.start, value.stop, value.step))
    if isinstance(value, Exception):
        return error_text(value)
    if isinstance(value, _VIEWS):
        return f"[{_joined(list(value))}]"
    for (module, name), attributes in LIBRARY.items():
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and isinstance(value, kind):
            return _tagged(name, _parts(kind, attributes, value))
    if isinstance(value, Iterator):
        return _iterator_text(value)
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return to_text(value.item())
    raise TypeError(f"{type(value).__name__} is no built-in type")


def _tagged(name: str, items: Iterable[object]) -> str:
    return f'{{"{name}": [{_joined(items)}]}}'


def _joined(items: Iterable[object]) -> str:
    return ", ".join([to_text(item) for item in items])


def _dict_text(value: dict) -> str:
    keys = OrderedDict.__iter__(value) if isinstance(value, OrderedDict) else dict.__iter__(value)
    pairs = ", ".join([f"[{to_text(key)}, {to_text(dict.__getitem__(value, key))}]" for key in keys])
    kind = next((kind.__name__ for kind in (OrderedDict, Counter) if isinstance(value, kind)), "dict")
    return f'{{"{kind}": [{pairs}]}}'


def _parts(library_type: type, attributes: tuple[str, ...], value: Any) -> Iterator:
    """Yield the value's attributes as `library_type` defines them, even if a subclass overrides them."""
    for name in attributes:
        part = getattr(library_type, name).__get__(value)
        yield part() if name.startswith("__") else part


def error_text(error: BaseException) -> str:
    """Return `{"error": [names of the exception's built-in classes, arguments]}` as text."""
    arguments = "[]"
    with contextlib.suppress(Exception):  # untrusted: arguments of foreign types, or no tuple at all
        arguments = to_text(list(error.args))
    names = to_text([one.__name__ for one in type(error).__mro__ if one.__module__ == "builtins"])
    return f'{{"error": [{names}, {arguments}]}}'


def _iterator_text(iterator: Iterator) -> str:
    """Return `{"iterator": [items, ending]}` as text; `ending` is null, the error that ended it, or "more"."""
    global _characters_left
    items: list[str] = []
    ending = "null"
    try:
        for item in iterator:
            text = to_text(item)
            _characters_left -= len(text) + 2
            if len(items) == _MAX_ITEMS or _characters_left < 0:
                ending = '"more"'
                break
            items.append(text)
    except MemoryError:  # also that of an item which alone takes all: those before it count
        ending = '"more"'
    except Exception as error:  # untrusted: the program's own, which a test may expect
        ending = error_text(error)
    return f'{{"iterator": [[{", ".join(items)}], {ending}]}}'


def from_text(text: str | bytes, *, with_nan: bool = True) -> Any:
    """Return the value that `to_text` wrote; iterators give their items, then raise the error that ended them.

    Text from a program may raise ValueError if `to_text` could not have written it, RecursionError if it is nested too
    deeply, and NanError if it holds nan and `with_nan` is false.
    """

    def from_object(tagged: dict[str, Any]) -> Any:
        try:
            ((kind, content),) = tagged.items()
            if kind == "iterator":
                items, ending = content
                return _replayed(items, ending)
            value = _FROM_CONTENT[kind](content)
            return checked(value) if kind in ("complex", "Decimal") else value
        except (TypeError, LookupError, AttributeError, ArithmeticError, SystemError) as error:
            raise ValueError(f"not a value as text ({error})") from error

    def checked(number: Any) -> Any:
        if not with_nan and number != number:
            raise NanError
        return number

    return json.loads(text, object_hook=from_object, parse_constant=lambda name: checked(float(name)))


def arguments_text(positional: Iterable[Any], keywords: dict[str, Any] | None = None) -> str:
    """Return the arguments of a call as text; errors as `to_text`."""
    return to_text([list(positional), keywords or {}])


def _replayed(items: list, ending: Any) -> Iterator:
    yield from items
    if isinstance(ending, Exception):
        raise ending
    if ending is not None:
        raise OverflowError("the answer's iterator has too many items")


def _error(content: list) -> BaseException:
    names, arguments = content
    for name in names:
        kind = getattr(builtins, name, None)
        # Unicode errors look up their positions when they are shown, wherever these are.
        if isinstance(kind, type) and issubclass(kind, ERRORS) and not issubclass(kind, UnicodeError):
            with contextlib.suppress(TypeError):  # it wants other arguments
                return kind(*arguments)
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
    "dict": dict,
    "OrderedDict": OrderedDict,
    "Counter": lambda pairs: Counter(dict(pairs)),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "error": _error,
    **{name: _of_library(module, name) for module, name in LIBRARY},
    "Fraction": _fraction,
    "timezone": lambda parts: importlib.import_module("datetime").timezone(*parts[0]),
}


def outcome_of_call(
    function: Callable[..., Any], arguments: str, *, is_tested: bool, num_characters: int
) -> tuple[str, BaseException | None]:
    """Call the function; return its result as text, and the exception that it raised, if any.

    The text is `["value", value]`, `["not plain", its type]`, `["raised", error]`, or empty if the exception alone has
    to end the run. Test code may look at more than the value: if `is_tested`, the text reports an exception and, as a
    third item, the arguments that the call changed in place, `[[number, value], ...]`. Iterators are read until the
    text has `num_characters` characters, since some have no end.
    """
    global _characters_left
    positional, keywords = from_text(arguments)
    given = [*positional, *keywords.values()] if is_tested else []
    before = list(map(_text_of, given))
    raised: BaseException | None = None
    value = None
    try:
        value = function(*positional, **keywords)
    except BaseException as error:  # untrusted
        raised = error
    _characters_left = num_characters
    if raised is not None and not (is_tested and isinstance(raised, (Exception, SystemExit))):
        return "", raised
    try:
        told = f'"raised", {error_text(raised)}' if raised is not None else f'"value", {to_text(value)}'
        return f"[{told}{_changes_text(given, before)}]", raised
    except Exception as error:  # untrusted: cycles, depth, foreign types and their raising methods
        return ("" if raised else to_text(["not plain", f"{type(value).__name__}: {type(error).__name__}"])), raised


def _text_of(container: Any) -> str:
    return to_text(container) if isinstance(container, CONTAINERS) else "null"


def _changes_text(values: list[Any], before: list[str]) -> str:
    """Return the containers that have changed, as text of a further item of a list; errors as in `to_text`."""
    after = map(_text_of, values)
    changes = [f"[{at}, {now}]" for at, (now, old) in enumerate(zip(after, before, strict=True)) if now != old]
    return f", [{', '.join(changes)}]" if changes else ""
