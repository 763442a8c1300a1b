"""Fixtures of the store's tests: a store in a directory, and one real S3 server for the session."""

import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import CREDENTIALS, s3_server
from store_helpers import FAST

from afm_core.store import Store, open_store


@pytest.fixture
def local_store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), tmp_path / "cache", FAST)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """A real S3 server with the bucket `artifacts`, killed with its group at the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory, s3_server(Path(directory)) as server:
        yield server.endpoint


@pytest.fixture
def s3_environment(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of the S3 server; returns a fresh s3:// URI."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_endpoint)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return f"s3://artifacts/{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.integration)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The same contract over a directory and over a real S3 server."""
    uri = str(tmp_path / "store") if request.param == "local" else request.getfixturevalue("s3_environment")
    return open_store(uri, tmp_path / "cache", FAST)
