"""The poll as a real flow on a real Prefect server: a dropped file ends as an event that tells of it, once."""

import json
import os
import time
from pathlib import Path

import pytest

from afm_core.config import home
from afm_core.store import open_store
from afm_core.taskcraft import find_version, unannounced


def _drop(questions: int) -> None:
    store = open_store(str(home() / "store"), home() / "cache")
    rows = [{"question": f"Question {number}?", "answer": str(number)} for number in range(questions)]
    store.backend.write("incoming/new.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows).encode())


def test_a_version_stays_unannounced_while_the_server_is_away(own_home: Path, monkeypatch) -> None:
    from click.testing import CliRunner
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from afm_cli.tasks import tasks

    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setattr("flows.announce._RECONNECTIONS", 0)
    (own_home.parent / "new.jsonl").write_text('{"question": "q", "answer": "a"}')
    # Prefect reads the environment once, and another test may have imported it already.
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        result = CliRunner().invoke(tasks, ["add", str(own_home.parent / "new.jsonl"), "--profile", "smoke", "--json"])
    assert (result.exit_code, json.loads(result.stdout)["announced"]) == (0, False)
    assert "was not told" in result.stderr
    store = open_store(str(home() / "store"), home() / "cache")
    assert [one.version for one in unannounced(store, "default")] == [1]


@pytest.mark.integration
def test_a_dropped_file_is_published_and_announced_once(own_home: Path, monkeypatch) -> None:
    import httpx

    from flows.embedded import embedded_server, wait_until_healthy

    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    with embedded_server(own_home) as ours:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        from flows.incoming import poll_incoming

        wait_until_healthy(ours=ours)
        _drop(5)
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
            first, second = poll_incoming("smoke"), poll_incoming("smoke")
        assert [(one["version"], one["added"]) for one in first["files"]] == [(1, 5)]
        assert (first["announced"], second) == ([1], {"pool": "default", "files": [], "announced": []})
        events = _events(httpx.Client(base_url=os.environ["PREFECT_API_URL"]))
    (event,) = events
    version = find_version(open_store(str(home() / "store"), home() / "cache"), "default")
    assert event["resource"]["prefect.resource.id"] == "afm.pool.default"
    assert (event["payload"]["version"], event["payload"]["digest"]) == (1, version.ref.digest)
    assert event["payload"]["added"] == 5


def _events(client) -> list[dict]:
    """What the server has of our event; it stores events a moment after it confirmed them."""
    wanted = {"filter": {"event": {"name": ["afm.tasks.published"]}}}
    for _ in range(100):
        found = client.post("/events/filter", json=wanted).raise_for_status().json()["events"]
        if found:
            return found
        time.sleep(0.2)
    return []
