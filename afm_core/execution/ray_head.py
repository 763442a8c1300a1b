"""One local Ray for one run, in a process of its own.

Ray's daemons are children of the process *thread* that called `ray.init` (kernel fate sharing), so the call is made
in the main thread of a small process that does nothing else: it prints the address, waits for its parent's pipe to
close, and shuts Ray down. Small object store, no dashboard, no telemetry: a laptop's Ray.
"""

import json
import os
import secrets
import subprocess
import sys
import threading
from pathlib import Path

from afm_core.cluster import local_options
from afm_core.config import ExecutionConfig
from afm_core.execution.events import FailureKind
from afm_core.execution.lifeline import die_with_parent
from afm_core.execution.runner import StageFailed

_START_SECONDS = 240.0
_START_ATTEMPTS = 3


class LocalRay:
    """Starts a local Ray lazily; `environment()` is idempotent and thread-safe, `close()` stops what was started.

    A local head asks for a token of its own, which lives in the environment of this
    run's processes and nowhere else.
    """

    def __init__(self, config: ExecutionConfig, log_path: Path) -> None:
        self._config = config
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        address = config.ray_address or os.environ.get("RAY_ADDRESS", "")
        self._environment = {"RAY_ADDRESS": address} if address else {}
        self._lock = threading.Lock()

    def environment(self) -> dict[str, str]:
        """What a process needs to join; starts the local head on first use. Raises StageFailed with the log's path."""
        with self._lock:
            if not self._environment:
                access = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
                self._environment = {**access, "RAY_ADDRESS": self._start(access), "AFM_LOCAL_RAY": "1"}
            return self._environment

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

    def _start(self, access: dict[str, str]) -> str:
        """Start the head. A loaded machine can be slower than Ray's own limits for a start: try again."""
        for _ in range(_START_ATTEMPTS):
            if address := self._start_once(access):
                return address
        raise StageFailed(f"the local Ray did not start; see {self._log_path}", FailureKind.INFRASTRUCTURE)

    def _start_once(self, access: dict[str, str]) -> str | None:
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        options = {"cpus": self._config.ray_cpus, "object_store_bytes": self._config.ray_object_store_bytes}
        program = f"from afm_core.execution.ray_head import serve; serve({options!r})"
        with self._log_path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={
                    "RAY_worker_niceness": "0",
                    **os.environ,
                    **access,
                },  # its workers are the run, not a background job
                start_new_session=True,
            )
        self._process = process
        assert process.stdout is not None
        watchdog = threading.Timer(_START_SECONDS, process.kill)
        watchdog.start()
        line = process.stdout.readline()
        watchdog.cancel()
        if not line:
            self.close()
            return None
        return str(json.loads(line)["address"])


def serve(options: dict[str, int]) -> None:
    """Run a Ray head until standard input closes."""
    die_with_parent()
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import ray

    context = ray.init(**local_options(options["cpus"], options["object_store_bytes"]))
    print(json.dumps({"address": context.address_info["address"]}), file=answer, flush=True)
    sys.stdin.buffer.read()
    ray.shutdown()
