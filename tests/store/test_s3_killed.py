"""kill -9 of the S3 server in the middle of a stage: told in one line, nothing half-written, the rerun continues."""

from pathlib import Path

import pytest
from s3_server import CREDENTIALS, S3Server, s3_server

from afm_core.config import load_config
from afm_core.execution import Event, FailureKind, Progress, RunSession, StageFailed

pytestmark = pytest.mark.integration


def test_kill_9_of_the_s3_server_in_a_stage_and_the_rerun_continues(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    config = load_config("smoke", None, ["store.uri=s3://artifacts/killed"])
    with s3_server(tmp_path) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        with RunSession(config, "first") as run:
            corpus = run.execute("corpus", {}).artifact
            tasks = run.execute("tasks", {"corpus": corpus}).artifact
            with pytest.raises(StageFailed) as failed:
                run.execute("teach", {"corpus": corpus, "tasks": tasks}, on_event=killing(server))
    assert failed.value.kind is FailureKind.INFRASTRUCTURE
    assert f"store s3://artifacts/killed at {server.endpoint}: does not answer" in str(failed.value)
    assert "\n" not in str(failed.value)
    with s3_server(tmp_path, server.ports), RunSession(config, "second") as run:
        assert run.execute("corpus", {}).cached
        assert run.execute("tasks", {"corpus": corpus}).cached
        again = run.execute("teach", {"corpus": corpus, "tasks": tasks})
        assert not again.cached
        assert [one.problems for one in run.store.verify()] == [()] * 3
        assert run.store.leases().dead(run.store.leases().newest(again.key))


def killing(server: S3Server):
    def on_event(stage: str, event: Event) -> None:
        if isinstance(event, Progress) and server.process.poll() is None:
            server.kill()

    return on_event
