"""Flows beside the pipeline on a real Prefect server and a real store: tasks for a pool, no champion yet, experts."""

import json
import os
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration


sys.path.insert(0, str(Path(__file__).parents[1] / "moe"))


def test_tasks_become_a_pool_version_once_no_champion_is_no_failure_and_experts_are_diagnosed(
    own_home: Path, tmp_path: Path, monkeypatch
) -> None:
    from architectures import write_model

    from flows.embedded import embedded_server, wait_until_healthy

    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    with embedded_server(own_home) as ours:
        from prefect.settings import PREFECT_API_URL, temporary_settings

        from flows.diagnose_experts import diagnose_experts
        from flows.evaluate_champion import evaluate_champion
        from flows.generate_tasks import generate_tasks

        wait_until_healthy(ours=ours)
        with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
            first, again = (generate_tasks("smoke", overrides=["tasks.seed=9"]) for _ in range(2))
            own = generate_tasks("smoke", pool="mine")
            nothing = evaluate_champion("smoke")
            experts = diagnose_experts(str(write_model(tmp_path / "model")), two_domains(tmp_path), "smoke")
    assert first["pool"]["added"] > 0
    assert first["pool"]["version"] == again["pool"]["version"] == 1
    assert again["pool"]["added"] == 0
    assert all(stage["cached"] for stage in again["stages"])
    assert own["pool"] == {"name": "mine", "version": None, "added": 0}  # the profile's own tasks are nothing new
    assert (nothing["status"], nothing["stages"], nothing["models"]) == ("completed", [], {})
    assert [stage["name"] for stage in experts["stages"]] == ["base", "diagnose"]


def two_domains(directory: Path) -> dict[str, str]:
    """Files of texts by domain."""
    files = {"facts": "The capital of Arland is Orlen.", "code": "def area(side): return side"}
    for name, text in files.items():
        rows = "".join(json.dumps({"text": f"{text} {number}"}) + "\n" for number in range(6))
        (directory / f"{name}.jsonl").write_text(rows)
    return {name: str(directory / f"{name}.jsonl") for name in files}
