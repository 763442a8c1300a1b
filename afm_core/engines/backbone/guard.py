"""Runs a command and kills its whole process group once the owner is gone, however the owner went.

    python -m afm_core.engines.backbone.guard COMMAND ...

The owner holds the other end of standard input. A server that outlived a killed stage would keep its GPUs.
"""

import os
import signal
import subprocess
import sys
import threading


def main(command: list[str]) -> None:
    """Wait for the command or for the end of standard input, whichever comes first."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    threading.Thread(target=lambda: os._exit(child.wait() & 0xFF), daemon=True).start()
    sys.stdin.buffer.read()
    os.killpg(os.getpgid(0), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
