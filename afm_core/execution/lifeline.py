"""Children die with their parents, whatever kills the parent.

Two independent lines: the kernel's parent-death signal (instant, but bound to the thread that forked, and lost across
a double fork), and a pipe that the parent holds open (end of file means the parent is gone, however it went).
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when its parent dies. Linux; elsewhere the pipe alone serves.

    parent: the parent's process id as the parent itself knows it. It may have died while this process was starting up;
    without it that goes unnoticed, and only a pipe helps.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def watch_pipe(descriptor: int, on_closed: Callable[[], None]) -> threading.Thread:
    """Call `on_closed` once the pipe's other end is gone. Reads in a daemon thread and discards what comes."""

    def watch() -> None:
        while os.read(descriptor, 4096):
            pass
        on_closed()

    thread = threading.Thread(target=watch, name="lifeline", daemon=True)
    thread.start()
    return thread


def end_own_group() -> None:
    """Kill this process and everything in its process group (the process must lead its own group)."""
    assert os.getpgid(0) == os.getpid(), "only the leader of a group may end it"
    os.killpg(0, signal.SIGKILL)
