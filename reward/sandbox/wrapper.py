"""What the remote backend sends: the program within a script that tells how it ended.

The script reports on standard error that the program did not compile, and on standard output the value of a call, both
behind a word drawn for this run. A program may find the word and forge a report; all it can forge is what it could as
well do: not compile, or return a value.
"""

from pathlib import Path

from reward.limits import Limits
from reward.sandbox.execution import Program

_JAIL = Path(__file__).with_name("jail")
_RUN = """
import builtins as _builtins, os as _os, sys as _sys

def _run():
    word, source, fn_name, arguments = {word!r}, {source!r}, {fn_name!r}, {arguments!r}
    leetcode, is_tested, iterators_end = {leetcode!r}, {is_tested!r}, {iterators_end!r}
    try:
        code = compile(source, "solution.py", "exec", dont_inherit=True)
    except Exception as error:
        _os.write(2, f"{{word}}{{type(error).__name__}}: {{error}}".encode(errors="replace")[:1000])
        _os._exit(1)
    if hasattr(_sys, "set_int_max_str_digits"):
        _sys.set_int_max_str_digits(0)
    if fn_name is None:
        exec(code, {{"__name__": "__main__", "__builtins__": _builtins}})
        return
    namespace = ready_names(source, fn_name) if leetcode else {{}}
    if leetcode:
        allow_depth()
    namespace["__name__"] = "solution"
    exec(code, namespace)
    function = find_function(namespace, fn_name, has_class=leetcode)
    text, error = outcome_of_call(function, arguments, is_tested=is_tested, iterators_end=iterators_end)
    _sys.stdout.flush()
    if text:
        _os.write(1, (word + text).encode())
    if is_tested and isinstance(error, SystemExit):
        raise SystemExit(error.code or 1)
    if error is not None:
        raise error
    _os._exit(0)

_run()
"""


def wrap(program: Program, word: str, limits: Limits, *, timeout_s: float) -> str:
    """The script for this program, which has so many seconds; `word` begins its reports."""
    source = _RUN.format(
        word=word,
        source=program.code,
        fn_name=program.fn_name,
        arguments=program.arguments,
        leetcode=program.leetcode,
        is_tested=program.is_tested,
        iterators_end=program.iterators_end(limits, timeout_s),
    )
    if program.fn_name is None:
        return source
    names = ("iterators.py", "values.py", "call.py", "leetcode.py")
    parts = [(_JAIL / name).read_text(encoding="utf-8") for name in names]
    lines = [line for part in parts for line in part.split("\n") if not line.startswith("from reward.")]
    return "\n".join([*lines, source])
