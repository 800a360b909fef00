r"""Run a verl command whose workers are forks of one preloaded process.

    python -m recipe.preload.launch -m verl.trainer.main_ppo ...

It starts the fork server of :mod:`recipe.preload` and runs the module or script in this process, as ``python`` does. A
program may restart itself in this way: :func:`enter`. On the CPU platform it is ``recipe.cpu_platform.launch``.
"""

import atexit
import os
import runpy
import sys
from collections.abc import Mapping
from types import SimpleNamespace

import setproctitle

from recipe import preload
from recipe.preload import modules, server
from recipe.preload.noise import drop_expected
from recipe.preload.stop import ends_at_signals
from recipe.preload.worker import Worker

HOOK_VARIABLE = "RAY_RUNTIME_ENV_HOOK"
HOOK = f"{preload.__name__}.{preload.use_stand_in.__name__}"


def enter(environment: Mapping[str, str], *, launcher: str | None = None) -> None:
    """Restart this command with the variables of ``environment``; return if nothing is missing.

    The command is restarted because most of these variables are read only when Python starts. Variables that the user
    has set stay. ``launcher`` is the module that preloads what workers import; None: nothing is preloaded.
    """
    missing = {name: value for name, value in environment.items() if name not in os.environ}
    options = ["-m", launcher] if launcher and not preload.is_tried else []
    if missing or options:
        own = sys.orig_argv[1:]
        # Before the module or the script come Python's options, after it arguments, some of which may be read already.
        start = next((n for n, word in enumerate(own) if word in ("-m", sys.argv[0])), None)
        if start is None or sys.argv[0] == "-c":
            words = " ".join(word for word in sys.argv[1:] if word != "train")
            sys.exit(
                "error: training is called from another program, which cannot be started again with what its workers "
                f"need; start it as a command, such as `online-refiner train {words}`"
            )
        command = [sys.executable, *own[:start], *options, *own[start:]]
        os.execve(sys.executable, command, {**os.environ, **missing})


def main(environment: Mapping[str, str] = preload.ENVIRONMENT, device: modules.Device = modules.GPU) -> None:
    """Start the fork server and run the program; in a fork of the server, run what a stand-in asked for."""
    if not sys.argv[1:] or sys.argv[1:] == ["-m"]:
        sys.exit("usage: python -m LAUNCHER (-m MODULE | SCRIPT) [ARGUMENT...]")
    enter({**environment, HOOK_VARIABLE: HOOK})
    preload.is_tried = True
    worker = _preload(device)
    if worker is not None:
        worker.run()
        return
    program = SimpleNamespace(status=None)
    atexit.register(_end, program)  # the first one is the last to be called
    try:
        if sys.argv[1] == "-m":
            sys.argv[:] = sys.argv[2:]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = sys.argv[1:]
            sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
        program.status = 0
    except SystemExit as stop:
        program.status = (stop.code or 0) if isinstance(stop.code, int | None) else 1
        raise
    except Exception:
        program.status = 1
        raise


def _end(program: SimpleNamespace) -> None:
    """End after a program that ran to its end, and after all that ends with it.

    To take modules apart needs seconds, and after an exception bindings report what they have leaked.
    """
    if program.status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(program.status)


def _preload(device: modules.Device) -> Worker | None:
    """Start the fork server unless something is in the way; says what."""
    if os.environ[HOOK_VARIABLE] != HOOK:
        reason = f"{HOOK_VARIABLE} is set to {os.environ[HOOK_VARIABLE]}"
    elif "RAY_ADDRESS" in os.environ:
        reason = "RAY_ADDRESS names a cluster that runs already"
    elif not os.access(preload.STAND_IN, os.X_OK):
        reason = f"{preload.STAND_IN} cannot be executed"
    elif device is modules.GPU and _torch_is_for_another_device():
        reason = "torch is not built for CUDA, and forks were not tried on other devices"
    else:
        setproctitle.getproctitle()  # it finds the title's place in memory as long as no variable has been changed
        drop_expected()
        with ends_at_signals():  # workers inherit what is set outside
            modules.load(modules.DRIVER)
        try:
            return server.start(device)
        except OSError as error:
            reason = str(error)
    print(f"preload: nothing is preloaded, each worker imports its packages itself: {reason}", file=sys.stderr)
    return None


def _torch_is_for_another_device() -> bool:
    with ends_at_signals():
        import torch  # here: what is not preloaded does without it
    return torch.version.cuda is None


if __name__ == "__main__":
    main()
