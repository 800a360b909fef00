"""`python -m reward.sandbox --probe`: what isolation this machine gives, and why not more.

Exit status: 0, or 1 if the local backend would refuse to run here.
"""

import argparse
import sys
from collections.abc import Sequence

from reward.sandbox.flavours import FLAVOURS
from reward.sandbox.jail.lockdown import REQUIRED_LAYERS
from reward.sandbox.zygote_process import Zygote

MEANING = {
    "supervision": "programs can be watched, and ended whatever they do",
    "uid": "a user of its own for every slot: no file, process or limit shared with anybody",
    "landlock": "no file but the interpreter's, for reading, and a scratch directory; no TCP",
    "seccomp": "no new process, program, socket or signal to others; no kernel interface that answers do not need",
    "namespaces": "no network, not even its own; no shared memory of others",
    "scratch": "files in a file system of their own, in memory: what one program writes takes no room from anybody",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m reward.sandbox", description=__doc__.splitlines()[0])
    parser.add_argument("--probe", action="store_true", required=True, help="try every layer and print the result")
    parser.parse_args(argv)
    zygote = Zygote(FLAVOURS["lean"])
    zygote.close()
    for name, reason in zygote.layers.items():
        need = "required" if name in REQUIRED_LAYERS else "optional"
        print(f"{name:<12}{'yes' if not reason else 'NO':<5}{need:<10}{reason or MEANING[name]}")
    refused = [name for name in REQUIRED_LAYERS if zygote.layers[name]]
    missing = [name for name, reason in zygote.layers.items() if reason]
    if refused:
        verdict = f"refuses to run without {' and '.join(refused)}"
    else:
        verdict = f"runs, with less isolation: no {', no '.join(missing)}" if missing else "runs, fully isolated"
    print(f"local backend: {verdict}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
