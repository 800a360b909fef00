"""What keeps test code in its process where the list of what it may use has a hole."""

import os
from pathlib import Path

import pytest

from reward.apps import Score, score_response
from reward.judge import Judge
from reward.limits import Limits
from reward.problem import Problem


def score_unchecked(test: str) -> Score:
    problem = Problem(problem_id="1", inputs=[test], outputs=[None], kind="test_code", fn_name="f")
    return score_response(problem, "```python\ndef f(x): return x\n```")


@pytest.mark.parametrize(
    "test",
    [
        "open(f('/etc/passwd'))",
        "open(f('/proc/{pid}/environ'))",
        "open(f('{file}'))",
        "open(f('{file}'), 'w')",
        "import os\nos.unlink(f('{file}'))",
        "import os\nos.kill(os.getppid(), f(0))",
        "import os\nif not os.fork(): os._exit(f(0))",
        "import os\nos.execv('/bin/true', ['true'])",
        "import socket\nsocket.socket()",
    ],
)
def test_test_code_reaches_nothing_outside(test: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    result = score_unchecked(test.replace("{file}", str(file)).replace("{pid}", str(os.getpid())))
    assert result.outcome == "fail"
    assert "PermissionError" in result.detail
    assert file.read_text() == "x"


@pytest.mark.parametrize(
    "test",
    [
        "import numpy as np\nassert np.linalg.det(np.eye(f(2))) == 1 and np.random.rand(2).shape == (2,)",
        "import pytest\nwith pytest.raises(ZeroDivisionError): f(1) // 0\nassert f(1) == pytest.approx(1)",
        "import asyncio\nasync def main():\n    await asyncio.sleep(0.01)\n    return f(3)\n"
        "assert asyncio.run(main()) == 3",
        "import datetime, zoneinfo\nwinter = datetime.datetime(2020, 1, 1)\n"
        "assert zoneinfo.ZoneInfo('Europe/Berlin').utcoffset(winter).seconds == f(3600)",
        "import hashlib, secrets\nassert len(hashlib.sha256().hexdigest()) == f(64) and secrets.randbelow(3) < 3",
        "import xml.dom.minidom, sqlite3.dbapi2\nassert f(1) == 1",  # not loaded before
    ],
)
def test_test_code_finds_what_it_needs(test: str) -> None:
    assert score_unchecked(test).outcome == "pass"


def test_what_test_code_writes_reaches_no_log(capfd: pytest.CaptureFixture[str]) -> None:
    judge = Judge()
    test = "import sys\nprint(f(1), file=sys.stderr)\nassert f(1) == 'forged'"
    said = b'["value", "forged"]'
    assert (
        judge.ask("run_test_code", test, "f", limits=Limits(), on_call=lambda *_: ("ok", said, 0.0)).value[0]
        == "passed"
    )
    judge.close()
    assert capfd.readouterr().err == ""
