"""How a run ends: what it says of its last checkpoint, which errors are one line, and who may write to its folder."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from composed_main import composed
from omegaconf import DictConfig
from ray.exceptions import ActorDiedError, RayTaskError

from recipe.online_refiner.verl_glue.trainer import _unreadable
from recipe.runs import lock
from recipe.runs.lock import COMMAND, TRAINER, Lock, lock_folders
from recipe.runs.stop import cause_of_end, checkpoint_before, last_words
from refiner_worker.client import CheckpointError, RunEndedError


def write_checkpoint(folder: Path, step: int) -> Path:
    """Write a checkpoint's actor and the tracker that names its step, and return the tracker."""
    actor = folder / f"global_step_{step}" / "actor"
    actor.mkdir(parents=True)
    (actor / "model_world_size_1_rank_0.pt").touch()
    tracker = folder / "latest_checkpointed_iteration.txt"
    tracker.write_text(str(step))
    return tracker


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["trainer.resume_mode=auto"], ""),
        (["trainer.resume_mode=disable"], " with trainer.resume_mode=auto"),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/a/global_step_4"],
            " with trainer.resume_mode=auto trainer.resume_from_path=null",
        ),
    ],
)
def test_a_run_that_is_stopped_says_what_is_saved(tmp_path: Path, settings: list[str], says: str) -> None:
    config = composed(f"run_dir={tmp_path}", "trainer.save_freq=5", *settings)
    nothing = last_words(config, "SIGTERM").splitlines()
    assert len(nothing) == 2 and nothing[0] == "stopped by SIGTERM: nothing is saved yet (trainer.save_freq=5)"
    write_checkpoint(tmp_path / "checkpoints", 10)
    first, second = last_words(config, "Ctrl-C").splitlines()
    assert first == f"stopped by Ctrl-C: the run is saved up to step 10, in {tmp_path}/checkpoints"
    assert second == f"the same command{says} goes on with step 11"


@pytest.mark.parametrize(("mode", "says"), [("disable", "the same command begins again"), ("auto", "step 11")])
def test_what_an_earlier_run_has_saved_is_no_progress_of_one_that_begins_anew(
    tmp_path: Path, mode: str, says: str
) -> None:
    config = composed(f"run_dir={tmp_path}", f"trainer.resume_mode={mode}")
    tracker = write_checkpoint(tmp_path / "checkpoints", 10)
    os.utime(tracker, (0, 0))
    assert last_words(config, "Ctrl-C").endswith(says)


def of_another_process(error: Exception) -> Exception:
    """Return Ray's copy of an error of another process."""
    return RayTaskError("run", f"Traceback: {error}", error).as_instanceof_cause()


@pytest.fixture
def config(tmp_path: Path) -> DictConfig:
    return composed(f"run_dir={tmp_path}", "trainer.save_freq=5")


@pytest.mark.parametrize("left", ["nothing", "a tracker alone", "an empty folder", "a tracker without a number"])
def test_no_checkpoint_is_promised_that_is_not_there(config: DictConfig, tmp_path: Path, left: str) -> None:
    tracker = tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.parent.mkdir()
    if left != "nothing":
        tracker.write_text("" if "without" in left else "4")
    if left == "an empty folder":
        (tracker.parent / "global_step_4" / "actor").mkdir(parents=True)
    line = cause_of_end(of_another_process(RunEndedError("agent loop worker 0 has died.")), config)
    follows = "No checkpoint is saved yet (trainer.save_freq=5): the same command begins again."
    assert line == f"agent loop worker 0 has died. {follows}"
    write_checkpoint(tracker.parent, 5)
    line = cause_of_end(RunEndedError("It is gone."), config)
    assert line == f"It is gone. The same command goes on with step 6, from the checkpoint in {tracker.parent}."


def test_the_death_of_the_process_that_trains_is_one_line(config: DictConfig) -> None:
    died = ActorDiedError()
    line = cause_of_end(died, config)
    assert line and line.startswith("the process that trains (TaskRunner) has died (") and "\n" not in line
    line = cause_of_end(of_another_process(died), config)
    assert line and line.startswith("a process of the run has died (") and line.endswith("command begins again.")


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), OSError(errno.EACCES, "denied"), RuntimeError("shape")])
def test_an_error_that_nobody_expects_keeps_its_traceback(config: DictConfig, error: Exception) -> None:
    assert cause_of_end(error, config) is None and cause_of_end(of_another_process(error), config) is None


def write_lines() -> None:
    with open("/dev/full", "w") as file:
        file.write("x" * 100_000)


@pytest.mark.parametrize(
    "write",
    [
        write_lines,
        lambda: torch.save({"weight": torch.zeros(10_000)}, "/dev/full"),
        lambda: torch.save({"weight": torch.zeros(10_000)}, "/dev/full", _use_new_zipfile_serialization=False),
        lambda: np.zeros(10_000).tofile("/dev/full"),
    ],
    ids=["text", "torch", "torch's old format", "numpy"],
)
def test_a_full_disk_is_one_line_with_the_folder(config: DictConfig, tmp_path: Path, write: Callable) -> None:
    with pytest.raises(Exception) as raised:
        write()
    for error in (raised.value, of_another_process(raised.value)):
        line = cause_of_end(error, config)
        assert line and line.startswith("a disk is full (") and "\n" not in line, raised.value
        assert f"={tmp_path} has " in line or "TMPDIR=" in line
        assert " MiB left. Make room there, or keep fewer checkpoints" in line and line.endswith("begins again.")


def test_a_quota_is_as_good_as_a_full_disk(config: DictConfig) -> None:
    try:
        raise RuntimeError("the step could not be saved") from OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    except RuntimeError as error:
        assert "a disk is full (" in (cause_of_end(error, config) or "")


def test_a_checkpoint_that_cannot_be_read_is_named_with_the_one_before_it(config: DictConfig, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    for step in (2, 10, 9):
        write_checkpoint(folder, step)
    (folder / "global_step_8").mkdir()  # without an actor: it was never finished
    assert checkpoint_before(folder / "global_step_10") == folder / "global_step_9"
    assert checkpoint_before(folder / "global_step_9") == folder / "global_step_2"
    file = folder / "global_step_9" / "actor" / "model_world_size_1_rank_0.pt"
    torch.save({"weight": torch.zeros(1000)}, file)
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(RuntimeError) as raised:
        torch.load(file)
    told = CheckpointError(_unreadable(folder / "global_step_9", of_another_process(raised.value)))
    line = cause_of_end(of_another_process(told), config)
    assert line and line.startswith(f"the checkpoint {folder}/global_step_9 cannot be read (") and "\n" not in line
    assert line.endswith(f"add trainer.resume_mode=resume_path trainer.resume_from_path={folder}/global_step_2")
    assert "trainer.resume_mode=disable" in _unreadable(folder / "global_step_2", raised.value)


HOLD = """
import sys
from pathlib import Path
from recipe.runs.lock import Lock
lock = Lock(Path(sys.argv[1]), "run_dir=it")
print("held", flush=True)
sys.stdin.read()
"""


def test_a_folder_has_one_writer_until_that_is_killed(config: DictConfig, tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdin=-1, stdout=-1, text=True)
    assert holder.stdout and holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match=f"another process writes there .process {holder.pid} on ") as raised:
        lock_folders(config)
    assert str(raised.value).startswith(f"run_dir={tmp_path}: ") and "\n" not in str(raised.value)
    assert lock_folders(config, TRAINER), "the process that trains has a lock of its own"
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    (own,) = lock_folders(config)
    assert f"process {os.getpid()} on " in (tmp_path / COMMAND).read_text()
    with pytest.raises(ValueError, match="another process writes there"):
        Lock(tmp_path, "--output it")
    del own
    Lock(tmp_path, "--output it")


def test_a_lock_waits_for_what_a_killed_command_has_left(config: DictConfig, tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout and holder.stdin and holder.stdout.readline() == "held\n"
    holder.stdin.close()  # it ends soon
    assert lock_folders(config, wait_s=60)
    holder.wait()


def test_a_lock_of_another_machine_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other machine may be lost, and a file server keeps its lock for a while."""
    holder = Lock(tmp_path, "run_dir=it")
    (tmp_path / COMMAND).write_text("process 7 on another")
    monkeypatch.setattr(lock, "LEASE_S", 0.1)
    with pytest.raises(ValueError, match="another process writes there .process 7 on another.; "):
        Lock(tmp_path, "run_dir=it")
    assert capsys.readouterr().err.startswith("run_dir=it: waiting up to 0.1 s for process 7 on another, in case")
    del holder


@pytest.mark.parametrize("key", ["trainer.default_local_dir", "records.path"])
def test_two_runs_do_not_share_a_folder_of_checkpoints_or_records(tmp_path: Path, key: str) -> None:
    first, second = (composed(f"run_dir={tmp_path}/{name}", f"{key}={tmp_path}/shared") for name in ("a", "b"))
    locks = lock_folders(first)
    assert len(locks) == 2
    with pytest.raises(ValueError, match=f"{key}={tmp_path}/shared: another process writes there"):
        lock_folders(second)
    assert len(lock_folders(composed(f"run_dir={tmp_path}/c", "records.path=memory://records"))) == 1


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    Lock(tmp_path, "run_dir=it")
    line = capsys.readouterr().err
    assert line.startswith("warning: run_dir=it: its file system has no locks (") and line.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="^run_dir=it cannot be written: Not a directory; set another folder$"):
        Lock(tmp_path / "file" / "run", "run_dir=it")


SHOW = "import recipe.online_refiner.main as main; main._show('a line of a plan\\n' * 100_000); main._show('more')"


def test_a_plan_may_be_read_in_part() -> None:
    """A reader may close the pipe early, as ``train dry_run=true | head -1`` does."""
    shown = subprocess.Popen([sys.executable, "-c", SHOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert shown.stdout and shown.stderr and shown.stdout.readline() == "a line of a plan\n"
    shown.stdout.close()
    assert shown.stderr.read() == "" and shown.wait() == 0
