"""One local Ray for one run, in a process of its own.

Ray's daemons are children of the process *thread* that called `ray.init` (kernel fate sharing), so the call is made
in the main thread of a small process that does nothing else: it prints the address, waits for its parent's pipe to
close, and shuts Ray down. Small object store, no dashboard, no telemetry: a laptop's Ray.
"""

import json
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

from afm_core.config import ExecutionConfig
from afm_core.execution.lifeline import die_with_parent

_START_SECONDS = 240.0


class LocalRay:
    """Starts a local Ray lazily; `address()` is idempotent and thread-safe, `close()` stops what was started."""

    def __init__(self, config: ExecutionConfig, log_path: Path) -> None:
        self._config = config
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._address = config.ray_address or os.environ.get("RAY_ADDRESS", "")
        self._lock = threading.Lock()

    def address(self) -> str:
        """The address to join; starts the local head on first use. Raises RuntimeError with the log's path."""
        with self._lock:
            if not self._address:
                self._address = self._start()
            return self._address

    def close(self) -> None:
        """Stop the head this object started, if any."""
        process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self) -> str:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        options = {"num_cpus": self._config.ray_cpus, "object_store_memory": self._config.ray_object_store_bytes}
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "afm_core.execution.ray_head", json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._process = process
        assert process.stdout is not None
        watchdog = threading.Timer(_START_SECONDS, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        if not line:
            raise RuntimeError(f"the local Ray did not start; see {self._log_path}")
        return str(json.loads(line)["address"])


def _serve(options: dict[str, int]) -> None:
    """Run a Ray head until standard input closes."""
    die_with_parent()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import ray

    context = ray.init(
        **options,
        include_dashboard=False,
        configure_logging=True,
        logging_level=logging.WARNING,
        log_to_driver=False,
        _system_config={"metrics_report_interval_ms": 60_000},
    )
    print(json.dumps({"address": context.address_info["address"]}), file=answer, flush=True)
    sys.stdin.buffer.read()
    ray.shutdown()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
