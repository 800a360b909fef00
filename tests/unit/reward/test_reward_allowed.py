"""What test code may use, and what it may not."""

from pathlib import Path

import pytest

from reward.judge import Judge
from reward.limits import Limits
from reward.problem import Problem


@pytest.mark.parametrize(
    ("test", "use"),
    [
        ("import threading\nassert f(3) == 4", "imports threading"),
        ("import _thread, math\nassert f(3) == 4", "imports _thread"),
        (
            "def check():\n    from concurrent.futures import Future\n    assert f(3)\ncheck()",
            "imports concurrent.futures",
        ),
        ("import multiprocessing as mp\nassert f(3) == 4", "imports multiprocessing"),
        ("import os.path\nassert f(3) == 4", "imports os.path"),
        ("assert f(3) == os.getpid()", "uses os"),
        ("from solution import f\nassert f(3) == 4", "imports solution"),
        ("from . import f\nassert f(3) == 4", "imports ."),
        ("from unittest import mock\nassert f(3) == 4", "imports unittest.mock"),
        ("import unittest.mock\nassert f(3) == 4", "imports unittest.mock"),
        ("import unittest as u\nassert f(3) == 4\nu.main()", "uses unittest.main"),
        ("import asyncio\nassert asyncio.run(asyncio.to_thread(f, 3)) == 4", "uses asyncio.to_thread"),
        ("import sys\nassert f(3) == sys.modules['x']", "uses sys.modules"),
        ("from sys import *\nassert f(3) == 4", "imports sys.\\*"),
        ("import urllib.request\nassert f(3) == 4", "imports urllib.request"),
        ("assert __import__('x') == f(3)", "uses __import__"),
        ("assert globals()['f'](3) == 4", "uses globals"),
        ("assert f(3) == open('x').read()", "uses open"),
        ("assert eval(f('3 4 +')) == 7", "uses eval"),
        ("assert all(map(eval, f('123', 6)))", "uses eval"),
        ("names = {}\nexec(f('add'), names)\nassert names['add'](1, 2) == 3", "uses exec"),
        ("assert compile(f(3), 'f', 'eval')", "uses compile"),
        ("import pickle\nassert pickle.loads(f(3)) == 3", "imports pickle"),
        ("import timeit\nassert timeit.timeit(f(3), number=1) < 1", "uses timeit.timeit"),
        ("import typing\nassert typing.get_type_hints(f(3))", "uses typing.get_type_hints"),
        ("import numpy as np, io\nassert np.load(io.BytesIO(f(3)), allow_pickle=True) == 1", "uses numpy.load"),
        ("import numpy as np\nassert np.genfromtxt(f(3)).size", "uses numpy.genfromtxt"),
        ("import numpy as np\nassert np.lib.npyio.load(f(3)) == 4", "uses numpy.lib.npyio.load"),
        ("from numpy import *\nassert load(f(3)) == 4", "uses numpy.load"),
        ("import numpy.testing as t\nt.runstring(f(3), {})\nassert f(3) == 4", "uses numpy.testing.runstring"),
        (
            "import asyncio\nloop = asyncio.new_event_loop()\n"
            "assert loop.run_until_complete(loop.run_in_executor(None, f, 3)) == 4",
            "uses run_in_executor",
        ),
        ("import io, sys\nsys.stdout = io.StringIO()\nf(3)\nassert sys.stdout.getvalue() == '4'", "sets sys.stdout"),
        ("input = lambda *_: '3'\nassert f(3) == 4", "sets input"),
        ("lines = iter('34')\ndef input(*_): return next(lines)\nassert f(3) == 4", "sets input"),
        ("seen = []\nprint = seen.append\nf(3)\nassert seen == [4]", "sets print"),
        ("import io, sys\nsys.stdin = io.StringIO('3')\nassert f(3) == 4", "uses sys.stdin"),
        ("import pytest\nwith pytest.warns(UserWarning): f(3)", "uses pytest.warns"),
        (
            "import warnings\nwith warnings.catch_warnings(record=True) as seen: f(3)\nassert len(seen) == 1",
            "expects warnings",
        ),
        (
            "import pytest, statistics\nwith pytest.raises(statistics.StatisticsError): f([])",
            "expects statistics.StatisticsError",
        ),
        (
            "from json import JSONDecodeError\ntry:\n    f('{')\n    assert False\nexcept JSONDecodeError: pass",
            "expects json.JSONDecodeError",
        ),
    ],
)
def test_what_test_code_may_not_use_is_refused(test: str, use: str) -> None:
    with pytest.raises(
        ValueError, match=f"problem 7: test_code 1 {use}, which test code may not: it may import __future"
    ):
        Problem.from_input_output({"test_code": ["assert f(3) == 4", test], "fn_name": "f"}, problem_id=7)


@pytest.mark.parametrize(
    "test",
    [
        "import collections.abc, math as m\nassert f(3) == m.pi and isinstance(f(4), collections.abc.Iterable)",
        "from urllib.parse import quote\nimport urllib.parse\nassert f(3) == quote('4') == urllib.parse.quote('4')",
        "from math import *\nassert isclose(f(3), 4.0)",
        "import numpy.testing\nnumpy.testing.assert_allclose(f(3), 4)\nassert f(3) == 4",
        "import sys\nif f(3) != 4: sys.exit(1)",
        "if f(3) != 4: exit(1)",
        "assert f(3) == sys.maxsize",
        "def open(x): return x\nassert open(f(3)) == 4",
        "for input, wanted in [(3, 4)]: assert f(input) == wanted",
        "def test(input=3): assert f(input) == 4\ntest()",
        "class Printer:\n    def print(self): assert f(3) == 4\nPrinter().print()",
        "print = str\nassert print(f(3)) == '4'",
        "import ast\nassert ast.literal_eval(f(3)) == [4]",
        "import json\ntry:\n    assert json.loads(f(3)) == 4\nexcept json.JSONDecodeError: assert False",
        "import timeit\nstarted = timeit.default_timer()\nassert f(3) == 4",
        "import warnings\nwith warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    assert f(3) == 4",
        "import asyncio, pytest\nwith pytest.raises(asyncio.TimeoutError): f(3)",
        "import sys\nprint(f(3), file=sys.stderr)\nassert f(3) == 4",
        "import numpy as np\nnp.testing.assert_allclose(np.linalg.norm(f(3)), 4)",
        "import unittest\nclass T(unittest.TestCase):\n    def t(self): self.assertEqual(f(3), 4)\nT('t').debug()",
    ],
)
def test_what_test_code_may_use(test: str) -> None:
    assert Problem.from_input_output({"test_code": [test], "fn_name": "f"}, problem_id=7).num_tests == 1


def test_a_module_that_test_code_may_not_import_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trainers_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nadd = 3")
    monkeypatch.syspath_prepend(tmp_path)
    test = "from trainers_own import *\nassert add(1, 2) == 3"
    (fault,) = Judge().ask("faults_of_tests", [test], None, limits=Limits()).value
    assert fault == [0, "refused", "imports trainers_own"]
    assert not (tmp_path / "ran").exists()
