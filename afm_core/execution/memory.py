"""Peak memory of a run: the sum of proportional set sizes (PSS) over the process tree, Ray included.

PSS divides shared pages among their users, so that the sum over the tree is what the run really occupies; resident
set sizes would count every shared library once a process.
"""

import contextlib
import threading
import time

import psutil


class MemorySampler:
    """Samples the tree below this process every `interval` seconds in a daemon thread."""

    def __init__(self, interval: float = 2.0) -> None:
        self.peak_bytes = 0
        self.series: list[tuple[float, int]] = []
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        self._started = time.monotonic()

    def __enter__(self) -> "MemorySampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            total = tree_pss()
            self.peak_bytes = max(self.peak_bytes, total)
            self.series.append((round(time.monotonic() - self._started, 1), total))


def tree_pss() -> int:
    """Bytes of PSS of this process and all its descendants that can be read."""
    own = psutil.Process()
    return sum(_pss(process) for process in [own, *own.children(recursive=True)])


def _pss(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        with open(f"/proc/{process.pid}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
    return 0
