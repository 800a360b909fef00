"""Test code that reads a clock around a call sees what counts as the answer's time."""

import time

import pytest

from reward.judge import Judge
from reward.limits import Limits

CLOCKS = ["time.time", "time.monotonic", "time.perf_counter", "time.process_time", "timeit.default_timer"]
CLOCKS_NS = [f"{clock}_ns" for clock in CLOCKS[:-1]]


@pytest.mark.parametrize("clock", CLOCKS + CLOCKS_NS)
@pytest.mark.parametrize("imported", [True, False])
def test_a_call_takes_what_counts_as_the_answers(clock: str, imported: bool) -> None:
    def answer(*_: str) -> tuple[str, bytes, float]:
        time.sleep(0.6)
        return "ok", b'["value", 4]', 0.1

    module, _, name = clock.partition(".")
    start = f"from {module} import {name} as now" if imported else f"import {module}\nnow = lambda: {clock}()"
    second = 10**9 if clock.endswith("_ns") else 1
    test = f"{start}\nt = now()\nassert f(3) == 4 == f(3)\nt = (now() - t) / {second}\nassert 0.19 < t < 0.6, t"
    run = Judge().ask("run_test_code", test, "f", limits=Limits(), on_call=answer)
    assert run.value == ["passed", ""]


def test_what_test_code_does_itself_takes_its_time() -> None:
    test = "import time\nt = time.time()\nassert f(3) == 4\ntime.sleep(0.3)\nassert time.time() - t >= 0.3"
    run = Judge().ask("run_test_code", test, "f", limits=Limits(), on_call=lambda *_: ("ok", b'["value", 4]', 0.0))
    assert run.value == ["passed", ""]
