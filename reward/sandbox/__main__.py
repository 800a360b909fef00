"""`python -m reward.sandbox --probe` prints which layers of isolation work on this machine, and why others do not.

Exit status: 0, or 1 if the sandbox would refuse to run here.
"""

import sys

from reward.sandbox.jail.lockdown import REQUIRED_LAYERS
from reward.sandbox.slot_process import Slot


def main() -> int:
    """Try every layer and print the result; return the exit status."""
    slot = Slot("standard")
    slot.close()
    for name, reason in slot.layers.items():
        need = "required" if name in REQUIRED_LAYERS else "optional"
        print(f"{name:<12}{'NO' if reason else 'yes':<5}{need:<10}{reason}".rstrip())
    refused = [name for name in REQUIRED_LAYERS if slot.layers[name]]
    print(f"sandbox: {'refuses to run without ' + ' and '.join(refused) if refused else 'runs'}")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
