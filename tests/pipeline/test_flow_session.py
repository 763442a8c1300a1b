"""A flow's session: how the flow run is called, and what its failure shows."""

from contextlib import nullcontext, suppress
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest

import flows.session
from afm_core.config import ConfigError
from afm_core.execution import FailureKind, RoadStage, RunStatus, StageFailed, find_run
from flows.session import ServerGone, open_session

FLOW_RUN = str(uuid4())


class Server:
    """The Prefect server as the session sees it."""

    def __init__(self) -> None:
        self.named: dict[str, Any] = {}
        self.pages: dict[str, str] = {}
        self.away = False

    def update_flow_run(self, identity: object, **fields: Any) -> None:
        self.named = fields

    def create_markdown_artifact(self, key: str, markdown: str, **_: Any) -> None:
        if self.away:
            raise httpx.ConnectError("refused")
        self.pages[key] = markdown


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(
        flows.session, "flow_run", SimpleNamespace(id=FLOW_RUN, tags=["nightly"], get_run_count=lambda: 1)
    )
    monkeypatch.setattr(flows.session, "get_client", lambda sync_client: nullcontext(made))
    monkeypatch.setattr(flows.session, "create_markdown_artifact", made.create_markdown_artifact)
    monkeypatch.setattr(flows.session, "server_answers", lambda: not made.away)
    return made


def session(*overrides: str) -> Any:
    return open_session("smoke", None, [*overrides, "tracking.enabled=false"], [], "r1", RoadStage.CORPUS)


def test_the_flow_run_is_called_after_the_run_and_the_record_knows_it(server: Server, own_home) -> None:
    with session():
        pass
    assert server.named == {"name": "smoke r1", "tags": ["nightly", "profile:smoke"]}
    record = find_run(own_home, "r1").load()
    assert (record.links.flow_run, record.status) == (FLOW_RUN, RunStatus.COMPLETED)
    assert server.pages == {}


def test_a_failed_stage_has_a_page_with_its_cause_its_log_and_the_way_on(server: Server) -> None:
    with suppress(StageFailed), session() as run:
        run.directory.log_of("evaluate:base").write_text("first\nloading ```\nTraceback: no memory\n")
        raise StageFailed("stage evaluate:base: process killed by SIGKILL", FailureKind.DIED, "evaluate:base")
    page = server.pages["failure"]
    for part in ("in stage `evaluate:base`", "killed by SIGKILL", "Traceback: no memory", "afm runs resume r1"):
        assert part in page


def test_a_run_that_is_refused_says_why(server: Server, own_home) -> None:
    with pytest.raises(ConfigError), session("agent.tools.web_search=nope"):
        raise AssertionError("not reached")
    assert "no tool 'nope'" in server.pages["failure"]
    assert "resume" not in server.pages["failure"]


def test_a_server_that_went_away_is_told_in_one_line(server: Server, own_home) -> None:
    server.away = True
    with pytest.raises(ServerGone, match="afm runs resume r1"), session():
        raise RuntimeError("Unable to acquire concurrency slots")
    assert "the Prefect server does not answer any more" in find_run(own_home, "r1").load().error


def test_what_else_fails_is_not_blamed_on_the_server(server: Server, own_home) -> None:
    with pytest.raises(RuntimeError, match="a bug"), session():
        raise RuntimeError("a bug")
    assert find_run(own_home, "r1").load().error == "a bug"
    assert "a bug" in server.pages["failure"]


def test_a_flow_run_that_keeps_crashing_is_ended(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows.session.flow_run, "get_run_count", lambda: flows.session.MAXIMUM_STARTS + 1)
    with pytest.raises(ConfigError, match="crashed each time"), session():
        raise AssertionError("not reached")
