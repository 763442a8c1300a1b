"""Real processes: killed at every named point and continued; racing for one key; killed while holding a
lease.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_helpers import KEY

from afm_core.store import CRASH_POINTS, Store, open_store

pytestmark = pytest.mark.integration
SCRIPT = Path(__file__).with_name("crash_stage.py")


def start(store: Store, scratch: Path, *arguments: str, crash: str = "") -> "subprocess.Popen[str]":
    scratch.mkdir(parents=True, exist_ok=True)
    root = str(SCRIPT.parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "AFM_CRASH_AT": crash}
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), store.uri, str(scratch), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]") -> dict[str, object]:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return json.loads(output)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of an undisturbed run."""
    directory = tmp_path_factory.mktemp("undisturbed")
    undisturbed = open_store(str(directory / "store"), directory / "cache")
    return str(finish(start(undisturbed, directory / "scratch"))["digest"])


LOCAL_POINTS = [("local", point) for point in (*CRASH_POINTS, "during_checkpoint:3")]
S3_POINTS = [("s3", point) for point in ("before_manifest", "before_pointer", "during_checkpoint:3")]


@pytest.mark.parametrize(("store", "point"), LOCAL_POINTS + S3_POINTS, indirect=["store"])
def test_killed_at_any_point_the_same_command_continues_with_the_same_digest(
    store: Store, tmp_path: Path, expected: str, point: str
):
    killed = start(store, tmp_path / "killed", crash=point)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert store.lookup(KEY) is None
    assert all(one.problems == () for one in store.verify())
    report = finish(start(store, tmp_path / "again"))
    assert report["digest"] == expected
    assert report["made"]
    if point.startswith("before"):
        assert report["resumed"] == 4
    if point == "during_checkpoint:3":
        assert report["resumed"] == 2
    assert [one.problems for one in store.verify()] == [()]
    assert store.gc(dry_run=False).live == ()
    assert store.lookup(KEY) is not None


def test_racing_processes_make_one_artifact(store: Store, tmp_path: Path, expected: str):
    reports = [finish(one) for one in [start(store, tmp_path / str(number)) for number in range(3)]]
    assert sum(bool(report["made"]) for report in reports) == 1
    assert {report["digest"] for report in reports} == {expected}
    assert len({report["uri"] for report in reports}) == 1


def test_waiting_process_takes_over_when_the_holder_is_killed(local_store: Store, tmp_path: Path, expected: str):
    holder = start(local_store, tmp_path / "holder", "hang")
    while not (tmp_path / "holder" / "hanging").exists():
        assert holder.poll() is None
        time.sleep(0.02)
    waiting = start(local_store, tmp_path / "waiting")
    os.killpg(holder.pid, signal.SIGKILL)
    assert finish(waiting) == {
        "resumed": 1,
        "made": True,
        "digest": expected,
        "uri": f"{local_store.uri}/work/{KEY}/0002/manifest.json",
    }
    holder.wait()
