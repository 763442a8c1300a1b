"""A real Ray head with its dashboard and token authentication, in a session of its own, for the tests of Ray jobs."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

TOKEN = "token-of-tests-0123456789abcdef0123456789abcdef"
SECRETS = {"AWS_SECRET_ACCESS_KEY": "secret-of-tests", "RAY_AUTH_TOKEN": TOKEN}
"""In the environment of the head, and so of its jobs; Ray must not be told any of them."""
_START_SECONDS = 120.0


@dataclass(frozen=True)
class RayHead:
    """A running head: its dashboard's address, and the process that all of it descends from."""

    dashboard: str
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """kill -9 of everything that makes the cluster, as when its node dies; what jobs started is left to itself."""
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if "afm_cli.main" not in " ".join(one.cmdline()) and "kill -s 0" not in " ".join(one.cmdline()):
                    one.kill()
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def ray_head() -> Iterator[RayHead]:
    """Start a head on free ports of loopback; everything it started is gone afterwards."""
    directory = tempfile.mkdtemp(prefix="afm-ray-", dir="/tmp")
    ports = free_ports(5)
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "ray-client-server-port", "metrics-export-port")
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=2"]
    command += ["--include-dashboard=true", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000"]
    command += [f"--temp-dir={directory}", *(f"--{name}={port}" for name, port in zip(names, ports, strict=True))]
    environment = {**os.environ, **SECRETS, "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    with Path(directory, "head.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    head = RayHead(f"http://127.0.0.1:{ports[1]}", process)
    try:
        _wait(head, Path(directory, "head.log"))
        yield head
    finally:
        members = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
        for one in members:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        if process.poll() is None:
            process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on, all different."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def stage_process(job: str) -> psutil.Process | None:
    """The process that runs the stage of a Ray job."""
    for one in psutil.process_iter(["cmdline"]):
        line = one.info["cmdline"] or []
        if "afm_cli.main" in line and any(job in part for part in line) and one.status() != psutil.STATUS_ZOMBIE:
            return one
    return None


def wait_for(what, seconds: float = 60.0):
    """The first true value of `what()`; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := what():
            return value
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds:.0f} s in vain")


def _wait(head: RayHead, log: Path) -> None:
    request = urllib.request.Request(f"{head.dashboard}/api/jobs/", headers={"Authorization": f"Bearer {TOKEN}"})
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if head.process.poll() is not None:
            break
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(request, timeout=5):
            return
        time.sleep(0.3)
    raise RuntimeError(log.read_text(errors="replace")[-3000:])
