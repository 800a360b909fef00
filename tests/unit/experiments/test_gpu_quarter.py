"""The runner of the GPU's jobs, on commands that hang, die, or are cut off; and the page of what came back."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import yaml
from waiting import PATIENCE_S, comes_true

from experiments.gpu_quarter import measured, runner
from experiments.gpu_quarter.jobs import JOBS, ORDER, REHEARSAL_S, all_jobs
from experiments.gpu_quarter.page import PAGE, parts, read, write_page
from experiments.gpu_quarter.runner import CUT, FAILED, HUNG, PASSED, Job, Runner, marked
from experiments.gpu_quarter.training import start_of

RESULTS = Path(__file__).parents[3] / "experiments" / "results" / "gpu"
GOOD = "import json, sys; json.dump({'n': 1, 'faults': []}, open(sys.argv[1], 'w'))"
WRONG = "import json, sys; json.dump({'n': 1, 'faults': ['n is 1']}, open(sys.argv[1], 'w'))"
MUTE = "pass"
DIES = "import os; print(*range(400), sep='\\n', flush=True); os.abort()"
WAITS = (
    "import subprocess, sys, time; subprocess.Popen(['sleep', '300'], start_new_session=True); "
    "print('waits', flush=True); time.sleep(300)"
)


def job(name: str, *, expects_s: float = 0.0, limit_s: float = PATIENCE_S, **settings: Any) -> Job:
    return Job(name=name, shows=name, expects_s=expects_s, limit_s=limit_s, **settings)


def runner_of(output: Path, programs: dict[str, str]) -> Runner:
    def command(one: Job) -> list[str]:
        return [sys.executable, "-c", programs[one.name], str(output / f"{one.name}.figures.json")]

    return Runner(output=output, command=command, facts={"device": "none"})


def result(output: Path, name: str) -> dict[str, Any]:
    return json.loads((output / f"{name}.json").read_text())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    monkeypatch.setattr(runner, "GRACE_S", 2.0)
    monkeypatch.setattr(runner, "END_S", 0.0)


@pytest.mark.parametrize(
    "program, state, fault", [(GOOD, PASSED, None), (WRONG, FAILED, "n is 1"), (MUTE, FAILED, "it wrote no figures")]
)
def test_a_job_passes_by_its_figures(tmp_path: Path, program: str, state: str, fault: str | None) -> None:
    runner_of(tmp_path, {"one": program}).run([job("one")], PATIENCE_S)
    found = result(tmp_path, "one")
    assert found["state"] == state
    assert found["faults"] == ([fault] if fault else [])
    assert found["device"] == "none"
    assert ("log" in found) == (state != PASSED)


def test_of_a_job_that_dies_the_last_lines_are_kept(tmp_path: Path) -> None:
    assert not runner_of(tmp_path, {"one": DIES, "two": GOOD}).run([job("one"), job("two")], PATIENCE_S)
    assert result(tmp_path, "one")["state"] == FAILED
    assert result(tmp_path, "one")["log"][-200:] == [str(number) for number in range(200, 400)]
    assert result(tmp_path, "two")["state"] == PASSED


def test_a_job_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = []
    monkeypatch.setattr(
        runner, "end", lambda mark, leader=None, end=runner.end: (marks.append(mark), end(mark, leader))
    )
    runner_of(tmp_path, {"one": WAITS, "two": GOOD}).run([job("one", limit_s=2.0), job("two")], PATIENCE_S)
    assert result(tmp_path, "one")["state"] == HUNG
    assert result(tmp_path, "two")["state"] == PASSED
    assert not [*marked(marks[0])]


def test_nothing_begins_that_does_not_fit_and_a_later_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def past_the_limit_once_it_waits() -> float:
        log = tmp_path / "cut.log"
        return 90.0 * (log.exists() and "waits" in log.read_text())

    jobs = [job("long", expects_s=100), job("cut"), job("short")]
    one = runner_of(tmp_path, {"long": GOOD, "cut": WAITS, "short": GOOD})
    with monkeypatch.context() as patched:
        patched.setattr(runner, "time", SimpleNamespace(monotonic=past_the_limit_once_it_waits, sleep=time.sleep))
        assert not one.run(jobs, 60.0)
    assert one.state_of("long") is None
    assert one.state_of("cut") == CUT
    again = runner_of(tmp_path, {"long": GOOD, "cut": GOOD, "short": MUTE})
    again.run([job("short")], PATIENCE_S)  # as a first call that had time for it alone
    assert again.run([jobs[0], jobs[1]], PATIENCE_S)
    assert [again.state_of(name) for name in ("long", "cut", "short")] == [PASSED, PASSED, FAILED]
    assert not again.run(jobs, PATIENCE_S)  # what has failed is not run again
    assert again.state_of("short") == FAILED


def test_what_a_killed_runner_left_is_ended_by_the_next(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from experiments.gpu_quarter.runner import Job, Runner
output = Path({str(tmp_path)!r})
one = Job(name="one", shows="", expects_s=0, limit_s=60)
Runner(output=output, command=lambda job: [sys.executable, "-c", {WAITS!r}]).run([one], {PATIENCE_S})
"""
    killed = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    log = tmp_path / "one.log"
    assert comes_true(lambda: killed.poll() is not None or log.exists() and "waits" in log.read_text())
    assert killed.poll() is None
    mark = (tmp_path / "one.running").read_text()
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    left = [*marked(mark)]
    assert len(left) == 2
    assert runner_of(tmp_path, {"one": GOOD}).run([job("one")], PATIENCE_S)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)


def test_a_job_waits_for_what_it_needs_and_is_left_out_without_it(tmp_path: Path) -> None:
    one = runner_of(tmp_path, {"first": DIES, "second": GOOD, "third": GOOD})
    one.run([job("first"), job("second", needs=("first",)), job("third")], PATIENCE_S)
    assert [one.state_of(name) for name in ("first", "second", "third")] == [FAILED, None, PASSED]


@pytest.mark.parametrize("measures, gib, expected", [(True, 80, 1), (False, 80, 2), (False, 24, 1), (False, None, 2)])
def test_only_jobs_that_do_not_measure_run_side_by_side_on_a_large_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measures: bool, gib: int | None, expected: int
) -> None:
    monkeypatch.setattr(runner, "has_private_tmp", lambda output: True)
    monkeypatch.setattr(runner, "own_tmp", lambda output: [])
    beside = f"""
import json, pathlib, sys, time
folder = pathlib.Path({str(tmp_path)!r})
number = len(list(folder.glob("*.running")))
while number < {expected} and not (folder / "three.running").exists():
    time.sleep(0.02)
    number = len(list(folder.glob("*.running")))
json.dump({{"beside": number, "faults": []}}, open(sys.argv[1], "w"))
"""
    names = ("one", "two", "three")
    one = runner_of(tmp_path, dict.fromkeys(names, beside))
    one.facts = {"gpu_mib": gib and 1024.0 * gib}
    assert one.run([job(name, measures=measures, limit_s=PATIENCE_S) for name in names], PATIENCE_S)
    assert max(result(tmp_path, name)["figures"]["beside"] for name in names) == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_neighbours_have_a_tmp_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not runner.has_private_tmp(Path("/tmp/somewhere"))
    monkeypatch.setattr(runner, "has_private_tmp", lambda output: True)
    command = [*runner.own_tmp(tmp_path), "sh", "-c", "echo mine >/tmp/gpu-quarter-test; ls /tmp"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if "permission" in answer.stderr.lower() or "not permitted" in answer.stderr:
        pytest.skip("no mounts here")
    assert answer.stdout.split() == ["gpu-quarter-test"]
    assert not Path("/tmp/gpu-quarter-test").exists()


def test_the_page_says_what_did_not_pass(tmp_path: Path) -> None:
    runner_of(tmp_path, {"soak": WRONG}).run([job("soak")], PATIENCE_S)
    found = {
        **result(tmp_path, "soak"),
        "cpus": 2,
        "driver": "1",
        "versions": {"verl": "0.9.1"},
        "date": "",
        "commit": "",
    }
    runner.write(tmp_path / "soak.json", found)
    text = "\n".join(line for part in parts(read(tmp_path)) for line in part)
    assert "| failed |" in text and "`soak` failed: n is 1" in text and "not run yet" in text


def test_each_job_has_its_place_in_the_order() -> None:
    assert sorted(ORDER) == sorted(JOBS)
    assert [one.name for one in all_jobs([], rehearses=False)] == [*ORDER]
    first = "stock eta-0 resume without-flash-attn soak shared pair-none pair-sft"
    assert " ".join(ORDER).startswith(first), "what no GPU has shown comes first"
    for place, name in enumerate(ORDER):
        assert {*JOBS[name][0].needs} <= {*ORDER[:place]}
    with pytest.raises(ValueError, match="no such jobs: cat"):
        all_jobs(["cat"], rehearses=False)


def test_a_rehearsal_begins_every_job_and_bad_ones_last() -> None:
    jobs = all_jobs([], rehearses=True)
    assert [one.name for one in jobs] == [*ORDER, "hangs", "dies", "overruns"]
    assert {one.expects_s for one in jobs} == {0.0}
    assert {one.limit_s for one in jobs[:-3]} == {REHEARSAL_S} and jobs[-3].limit_s == 5


def test_results_of_an_earlier_order_are_kept_and_the_rest_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    before = {file.stem: file.read_text() for file in tmp_path.glob("*.json")}
    whole = {name for name, text in before.items() if json.loads(text).get("state") == PASSED}
    assert whole >= {"quickstart", "stock", "sized-none"}
    assert runner_of(tmp_path, dict.fromkeys(ORDER, GOOD)).run(all_jobs([], rehearses=False), 10_000)
    started = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if ": started" in line]
    assert started == [name for name in ORDER if name not in whole]
    assert {name: (tmp_path / f"{name}.json").read_text() for name in whole} == {name: before[name] for name in whole}


def test_the_page_and_the_measured_constants_are_those_of_the_committed_results(tmp_path: Path) -> None:
    write_page(RESULTS, tmp_path / "gpu.md")
    assert (tmp_path / "gpu.md").read_text() == PAGE.read_text()
    found = measured.constants(read(RESULTS))
    assert found == yaml.safe_load(measured.FILE.read_text())
    # Two engines asleep and the model's state are what the GPU held between rollout and update.
    held = found["training_gib"] + 2 * found["asleep_gib"] + 19.9
    steps = read(RESULTS)["sized-sft"]["figures"]["steps"]
    assert held == pytest.approx(steps[-1]["memory_gb/asleep"], abs=0.1)
    assert measured.constants({}) is None


LOG = """\
  0:00  reading the config
\x1b[36m(EngineCore pid=7)\x1b[0m INFO 11-29 10:00:00 [core.py:355] init engine (profile, warmup) took 21.40 s
  1:05  starting Ray
INFO 11-29 10:00:01 [abstract.py:339] It took 0.0060 seconds to fall asleep.
(Worker pid=8) INFO 11-29 10:00:02 [gpu_model_runner.py:7049] Graph capturing finished in 9 secs, took 0.24 GiB
  1:20  loading the policy
step  1/6  reward +0.10
"""


def test_the_start_of_a_run_is_read_from_its_log() -> None:
    assert start_of(LOG) == {
        "began_at_s": {"reading the config": 0, "starting Ray": 65, "loading the policy": 80},
        "engines": ["init engine (profile, warmup) took 21.40 s", "Graph capturing finished in 9 secs, took 0.24 GiB"],
    }
    assert start_of("no line") == {"began_at_s": {}, "engines": []}


def result_of(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    about = {"device": "none", "cpus": 2, "driver": "1", "versions": {"verl": "0.9.1"}, "date": "", "commit": ""}
    about |= {"gpu_mib_at_peak": 0.0, "seconds": 100.0, "faults": []}
    return {"job": name, "state": PASSED, **about, "figures": figures}


def test_the_page_of_a_quickstart_says_how_long_each_part_of_its_start_took() -> None:
    steps = [{"step": 1, "timing_s/step": 20.0, "timing_s/update_actor": 9.4}]
    figures = {"steps": steps, "step_at_s": [110.4], "start": start_of(LOG)}
    text = "\n".join(line for part in parts({"quickstart": result_of("quickstart", figures)}) for line in part)
    assert "| starting Ray | 65 | 15 |" in text and "| loading the policy | 80 | 30 |" in text
    assert "- init engine (profile, warmup) took 21.40 s" in text
    assert "| `quickstart` | 1 | 0.00 | 0% | 20.0 |" in text
    figures["start"] = start_of("  0:00  reading the config\n[core.py:355] init engine took 21.40 s")
    text = "\n".join(line for part in parts({"quickstart": result_of("quickstart", figures)}) for line in part)
    assert "- init engine took 21.40 s" in text and "reading the config" not in text


def test_the_page_of_the_pair_has_a_row_for_each_arm() -> None:
    line = {"rate": 5e-5, "start": 0.0589, "held_out": {"6": 0.5, "12": 0.25}, "kl": 0.7, "log_loss": 0.9, "tokens": 70}
    figures = {"steps": [{"step": 1, "timing_s/step": 2.0}, {"step": 2, "timing_s/step": 4.0}], "line": line}
    results = {name: result_of(name, figures) for name in ("pair-none", "pair-sft")}
    text = "\n".join(row for part in parts(results) for row in part)
    for name in results:
        assert f"| `{name}` | 50%, 25% | 0.700 | 0.900 | 70 | 3.0 |" in text
    assert "its learning rate 5e-05" in text and "follow every 6 steps" in text
