"""What runs inside the child interpreter: `python -I -S child.py JOB_FD CONTROL_FD RESULT_FD`.

Reads one job (marshalled: code, fn_name, arguments, limits) from JOB_FD, limits itself, and reports on CONTROL_FD
`ready` and then `compiled` or `compile_error ...`. CONTROL_FD is closed before the code under test runs, so that the
code cannot forge it. A stdin program runs as `__main__` on the real file descriptors 0 and 1; a call-based one is
imported, called, and its value written as JSON on RESULT_FD. Nothing here knows an expected output.

Standard library only, no import of the package: the interpreter is isolated and starts without site-packages. Its
start is most of a test's cost, so it does without `json` and `typing`, each of which takes longer than the bare start.
"""

import builtins
import importlib
import marshal
import math
import os
import resource
import sys
import types
from _json import encode_basestring_ascii  # json.dumps of a text, without importing json

# Names that LeetCode's platform imports for its solutions, which APPS's call-based problems come from.
LEETCODE_NAMES = {
    "collections": ("Counter", "OrderedDict", "defaultdict", "deque"),
    "functools": ("lru_cache", "reduce", "cmp_to_key"),
    "heapq": ("heapify", "heappop", "heappush", "nlargest", "nsmallest"),
    "itertools": ("accumulate", "combinations", "permutations", "product"),
    "math": ("ceil", "floor", "gcd", "inf", "sqrt"),
    "bisect": ("bisect", "bisect_left", "bisect_right"),
    "typing": ("Any", "Dict", "List", "Optional", "Set", "Tuple", "Union"),
}
LEETCODE_MODULES = ("bisect", "collections", "functools", "heapq", "itertools", "math", "random", "re", "string")


def limit_resources(limits: dict[str, float]) -> None:
    """Lower this process's limits, hard and soft, for good."""
    seconds = math.ceil(limits["timeout_s"]) + 1  # a backstop: the parent's wall clock is the limit that counts
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        lowered = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (lowered, lowered))


def prepare_interpreter() -> None:
    """Give the program what it would find in an interpreter with `site`, and APPS's Python without the digit limit."""
    for name in ("exit", "quit"):
        setattr(builtins, name, sys.exit)
    if hasattr(sys, "set_int_max_str_digits"):
        sys.set_int_max_str_digits(0)
    sys.argv = ["solution.py"]


def leetcode_namespace(source: str) -> dict[str, object]:
    """Those of LeetCode's ready names that the source mentions (importing them all would cost more than most tests)."""
    namespace: dict[str, object] = {
        name: importlib.import_module(name) for name in LEETCODE_MODULES if f"{name}." in source
    }
    for module, names in LEETCODE_NAMES.items():
        for name in names:
            if name in source:
                namespace[name] = getattr(importlib.import_module(module), name)
    return namespace


def call(namespace: dict, fn_name: str, arguments: list) -> object:
    """Call the method of class Solution if there is one, else the function.

    Raises:
        NameError: the code defines neither.
    """
    solution = namespace.get("Solution")
    if solution is not None and hasattr(solution, fn_name):
        return getattr(solution(), fn_name)(*arguments)
    if fn_name not in namespace:
        raise NameError(f"the code does not define {fn_name}")
    return namespace[fn_name](*arguments)


def encode_value(value: object) -> bytes:
    """The value as JSON; one that JSON cannot express is a wrong answer, for which its type's name goes back."""
    try:
        text = f'{{"value": {to_json(value)}}}'
    except Exception as error:  # untrusted: cycles, depth, foreign types and their raising methods
        text = f'{{"not_json": {to_json(f"{type(value).__name__}: {type(error).__name__}")}}}'
    return text.encode()


def to_json(value: object) -> str:
    """What json.dumps gives, for the plain types (tuples become lists, keys become text).

    Raises:
        TypeError: the value is of another type.
        RecursionError: the value is nested too deeply, or contains itself.
    """
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return encode_basestring_ascii(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        if not math.isfinite(value):  # names that json.loads knows
            return "NaN" if value != value else ("Infinity" if value > 0 else "-Infinity")
        return float.__repr__(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([to_json(item) for item in value]) + "]"
    if isinstance(value, dict):
        keys = [key if isinstance(key, str) else to_json(key) for key in value]
        items = [to_json(item) for item in value.values()]
        return "{" + ", ".join(f"{to_json(key)}: {item}" for key, item in zip(keys, items, strict=True)) + "}"
    raise TypeError(f"{type(value).__name__} is no plain JSON type")


def main() -> None:
    """Run one job; the exit status is the program's own."""
    job_fd, control_fd, result_fd = (int(word) for word in sys.argv[1:])
    with open(job_fd, "rb") as job_file:
        source, fn_name, arguments, limits = marshal.load(job_file)
    limit_resources(limits)
    os.write(control_fd, b"ready\n")
    try:
        code = compile(source, "solution.py", "exec", dont_inherit=True)
    except Exception as error:  # untrusted source: SyntaxError, ValueError, MemoryError, RecursionError, ...
        os.write(control_fd, f"compile_error {type(error).__name__}: {error}\n".encode(errors="replace")[:1000])
        return
    os.write(control_fd, b"compiled\n")
    os.close(control_fd)
    prepare_interpreter()

    module = types.ModuleType("__main__" if fn_name is None else "solution")
    sys.modules[module.__name__] = module
    if fn_name is None:
        os.close(result_fd)
        exec(code, module.__dict__)
        return
    module.__dict__.update(leetcode_namespace(source))
    exec(code, module.__dict__)
    payload = encode_value(call(module.__dict__, fn_name, arguments))
    with open(result_fd, "wb") as result_file:
        result_file.write(payload)


if __name__ == "__main__":
    main()
