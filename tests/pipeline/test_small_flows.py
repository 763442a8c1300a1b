"""Flows beside the pipeline on a real Prefect server and a real store: generated tasks for a pool, no champion yet."""

import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


def test_generated_tasks_become_a_pool_version_once_and_no_champion_is_no_failure(own_home: Path, monkeypatch) -> None:
    from flows.embedded import embedded_server, wait_until_healthy

    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    with embedded_server(own_home) as ours:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        from flows.evaluate_champion import evaluate_champion
        from flows.generate_tasks import generate_tasks

        wait_until_healthy(ours=ours)
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
            first, again = (generate_tasks("smoke", overrides=["tasks.seed=9"]) for _ in range(2))
            own = generate_tasks("smoke", pool="mine")
            nothing = evaluate_champion("smoke")
    assert first["pool"]["added"] > 0
    assert first["pool"]["version"] == again["pool"]["version"] == 1
    assert again["pool"]["added"] == 0
    assert all(stage["cached"] for stage in again["stages"])
    assert own["pool"] == {"name": "mine", "version": None, "added": 0}  # the profile's own tasks are nothing new
    assert (nothing["status"], nothing["stages"], nothing["models"]) == ("completed", [], {})
