"""What is found out about the machine, and what follows from it."""

import struct
from pathlib import Path

import pytest
from in_sandbox import run_python

from reward.sandbox.jail import seccomp
from reward.sandbox.local import check_isolation


def test_without_landlock_nothing_runs_unless_allowed() -> None:
    # A kernel without Landlock, made by a filter that answers its first call as such a kernel does.
    code = """
        import errno
        from reward.limits import Limits
        from reward.sandbox import Sandbox, Program
        from reward.sandbox.jail import kernel, seccomp
        kernel.prctl("", kernel.PR_SET_NO_NEW_PRIVS, 1)
        answer = seccomp._refused(errno.ENOSYS)
        seccomp.install(seccomp.instruction(0x20, 0) + seccomp._if_one_of((444,), hit=answer, miss=seccomp._ALLOWED))
        try:
            Sandbox(num_slots=1)
        except ValueError as error:
            print("refused:", error)
        sandbox = Sandbox(num_slots=1, allow_unsafe=True)
        print(sandbox.execute(Program(code="print(7)"), limits=Limits(), timeout_s=5).stdout)
        sandbox.execute(Program(code="import os; os.makedirs('a/b'); open('a/b/c', 'w')"), limits=Limits(), timeout_s=5)
        print(sandbox.execute(Program(code="import os; print(os.listdir())"), limits=Limits(), timeout_s=5).stdout)
        sandbox.close()
    """
    done = run_python(code)
    lines = done.stdout.split("\n")
    assert lines[0].startswith("refused: sandbox: own process, limits") and "no landlock ([Errno 38]" in lines[0]
    assert lines[1:] == ["7", "", "[]", "", ""]
    assert "UNSAFE sandbox" in done.stderr


@pytest.mark.parametrize("abi", [1, 2, 3])
def test_older_landlock_keeps_files_from_being_emptied(tmp_path: Path, abi: int) -> None:
    # Its versions 1 and 2 do not govern truncation: what they let through, the filters refuse.
    code = f"""
        import os
        from reward.sandbox.jail import kernel, landlock, seccomp
        os.chdir({str(tmp_path)!r})
        open("kept", "w").write("text")
        kernel.prctl("", kernel.PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict_self(landlock.create_ruleset([(".", landlock.READ)], abi={abi}))
        seccomp.install(seccomp.programs_filter())
        for flags in (os.O_RDONLY | os.O_TRUNC, os.O_WRONLY, os.O_RDWR | os.O_TRUNC, 3 | os.O_TRUNC):
            try:
                os.open("kept", flags)
            except PermissionError:
                print("refused", end=" ")
        try:
            os.truncate("kept", 0)
        except PermissionError:
            print(open("kept").read())
    """
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("refused refused refused refused text\n", "")


def test_probe_command_names_every_layer() -> None:
    done = run_python("import runpy; runpy.run_module('reward.sandbox', run_name='__main__')")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [line.split()[:3] for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["supervision", "uid", "landlock", "seccomp", "sandbox:"]
    assert [row for row in rows if "required" in row] == [
        [name, "yes", "required"] for name in ("supervision", "landlock", "seccomp")
    ]


def test_without_pidfd_nothing_runs() -> None:
    code = """
        import errno
        from reward.sandbox import Sandbox
        from reward.sandbox.__main__ import main
        from reward.sandbox.jail import kernel, seccomp
        kernel.prctl("", kernel.PR_SET_NO_NEW_PRIVS, 1)
        answer = seccomp._refused(errno.ENOSYS)
        seccomp.install(seccomp.instruction(0x20, 0) + seccomp._if_one_of((434,), hit=answer, miss=seccomp._ALLOWED))
        assert main() == 1
        try:
            Sandbox(num_slots=1, allow_unsafe=True)
        except ValueError as error:
            print("refused:", error)
    """
    done = run_python(code)
    *_, verdict, refusal = done.stdout.splitlines()
    assert verdict.startswith("sandbox: refuses to run without supervision")
    assert refusal.startswith("refused: sandbox: ") and "no supervision (a child cannot be ended: [Errno 38]" in refusal
    assert done.stderr == ""


def test_a_user_of_its_own_is_not_required(caplog: pytest.LogCaptureFixture) -> None:
    check_isolation({"landlock": "", "seccomp": "", "uid": "not root"}, allow_unsafe=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert caplog.messages == ["sandbox: own process, limits, landlock, seccomp; no uid (not root)"]


@pytest.mark.parametrize(("machine", "arch", "openat"), [("x86_64", 0xC000003E, 257), ("aarch64", 0xC00000B7, 56)])
def test_filters_have_the_numbers_of_their_machine(machine: str, arch: int, openat: int) -> None:
    program = seccomp.programs_filter(machine)
    compared = [value for code, value in struct.iter_unpack("=H2xI", program) if code == 0x15]
    assert compared[0] == arch and openat in compared
    assert {435, 437, 425}.isdisjoint(compared)  # clone3, openat2, io_uring_setup: unknown, so refused


def test_a_machine_without_a_table_has_no_filter() -> None:
    with pytest.raises(OSError, match="riscv64"):
        seccomp.programs_filter("riscv64")
