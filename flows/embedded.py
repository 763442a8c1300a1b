"""A Prefect server for one run, when no PREFECT_API_URL is set.

Prefect starts such a server itself, but only once a flow begins, and leaves it behind when the run is killed. This one
starts at once, beside the imports (half the start-up time on two cores), and dies with its parent.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_START_SECONDS = 180.0
_GIVEN_SECONDS = 30.0
"""A server that the user named should be there already; ours starts in this while."""
_DRAIN_SECONDS = 10.0
_IDLE_SERVICES = ("SCHEDULER", "LATE_RUNS", "FOREMAN", "PAUSE_EXPIRATIONS", "CANCELLATION_CLEANUP", "TRIGGERS")


@contextlib.contextmanager
def embedded_server(home: Path) -> Iterator[bool]:
    """Provide PREFECT_API_URL for the block: the user's, or that of a server of our own (True) on loopback."""
    if os.environ.get("PREFECT_API_URL"):
        yield False
        return
    (home / "prefect").mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home / "prefect"))
    port = _free_port()
    log_path = home / "prefect" / "server.log"
    process = _start(port, log_path)
    os.environ["PREFECT_API_URL"] = f"http://127.0.0.1:{port}/api"
    try:
        yield True
    finally:
        _drain()
        os.environ.pop("PREFECT_API_URL", None)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_until_healthy(*, ours: bool) -> None:
    """Block until PREFECT_API_URL answers. Raises RuntimeError telling where to look."""
    import httpx

    url = os.environ["PREFECT_API_URL"]
    deadline = time.monotonic() + (_START_SECONDS if ours else _GIVEN_SECONDS)
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        time.sleep(0.1)
    look = f"see {os.environ['PREFECT_HOME']}/server.log" if ours else "`afm status` tells if it is one of `afm up`"
    raise RuntimeError(f"no Prefect server answers at {url}: {look}")


def _drain() -> None:
    """Let Prefect send its last log lines and events before the server stops."""
    if "prefect.logging.handlers" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=_DRAIN_SECONDS)
    EventsWorker.drain_all(timeout=_DRAIN_SECONDS)


def _start(port: int, log_path: Path) -> "subprocess.Popen[bytes]":
    environment = {
        **os.environ,
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
        **{f"PREFECT_SERVER_SERVICES_{name}_ENABLED": "false" for name in _IDLE_SERVICES},
    }
    program = (
        f"from afm_core.execution.lifeline import die_with_parent; die_with_parent({os.getpid()});"
        "import uvicorn; uvicorn.run('prefect.server.api.server:create_app', factory=True,"
        f" host='127.0.0.1', port={port}, log_level='error', lifespan='on')"
    )
    with log_path.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdout=log, stderr=log, start_new_session=True
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
