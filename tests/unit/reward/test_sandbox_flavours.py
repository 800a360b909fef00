"""Whatever an answer imports, names or encodes finds a zygote that has it."""

import pytest

from reward.apps import score_response
from reward.problem import Problem
from reward.sandbox.flavours import choose

PROGRAMS = {
    "pi": "π = 15\nprint(π)",
    "latin": "é = 15\nprint(é)",
    "chinese": "结果 = 15\nprint(结果)",
    "attribute": "class A: pass\nA.é = 15\nprint(A.é)",
    "keyword": "def g(*, θ): return θ\nprint(g(θ=15))",
    "beside lean modules": "import math, heapq\nμ = 15\nprint(μ)",
    "beside others": "import datetime\nσ = 15\nprint(σ)",
    "beside numpy": "import numpy as np\nλ = 15\nprint(np.int64(λ))",
    "text that is run": "exec('π = 15\\nprint(π)')",
    "a character's name": "print(15 if '\\N{DEGREE SIGN}' == '°' else 0)",
    "a line that goes on": "import sys, \\\n    statistics, fractions\nprint(15)",
    "a line that goes on, with a return": "import sys, \\\r\n    struct\nprint(len(struct.pack('15s', b'')))",
    "numpy on a second line": "import sys, \\\n    numpy as np\nprint(np.int64(15))",
    "numpy behind the keyword": "from \\\n    numpy import int64\nprint(int64(15))",
    "numpy behind a form feed": "import\fnumpy as np\nprint(np.int64(15))",
    "numpy by function": "np = __import__('numpy')\nprint(np.int64(15))",
    "numpy by importlib": "import importlib\nnp = importlib.import_module('numpy')\nprint(np.int64(15))",
    "gbk": "print(15 if 'ab'.encode('gbk').decode('gbk') == 'ab' else 0)",
    "idna": "print(15 if 'é.com'.encode('idna') else 0)",
    "shift_jis by keyword": "print(15 if b'ab'.decode(encoding=\"shift_jis\") else 0)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_find_what_they_use(name: str) -> None:
    problem = Problem.from_input_output({"inputs": ["5\n"], "outputs": ["15\n"]}, problem_id=name)
    score = score_response(problem, f"```python\n{PROGRAMS[name]}\n```")
    assert score.outcome == "pass", score.detail


@pytest.mark.parametrize(
    "fields",
    [
        {"inputs": [[2], [3]], "outputs": [6, 9], "fn_name": "f"},
        {"test_code": ["assert f(2) == 6", "π = 3\nassert f(3) == 3 * π"], "fn_name": "f"},
    ],
)
def test_functions_may_have_names_beyond_ascii(fields: dict) -> None:
    problem = Problem.from_input_output(fields, problem_id=7)
    assert score_response(problem, "```python\ndef f(x):\n    π = 3\n    return π * x\n```").outcome == "pass"


@pytest.mark.parametrize(
    ("code", "flavour"),
    [
        ("import sys, math\nprint(π)", "lean"),
        ("import unicodedata", "lean"),
        ("print(input().encode('utf-8').decode('ascii'))", "lean"),
        ("from math import pi, \\\n    sqrt", "lean"),
        ("import sys, \\\n    statistics", "full"),
        ("import\fstatistics", "full"),
        ("m = __import__('math')", "full"),
        ("m = __import__('numpy')", "numpy"),
        ("x.decode('big5')", "full"),
    ],
)
def test_the_least_flavour_is_taken(code: str, flavour: str) -> None:
    assert choose(code) == flavour
