"""From a flow's parameters to a run in progress, and, if it fails, to a page in the Prefect UI that says why."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL

from afm_core.config import ConfigError, load_config
from afm_core.execution import RoadStage, RunSession, StageFailed, new_run_id
from afm_core.execution.pages import failure_page
from tasks.console import outlive_reader

MAXIMUM_STARTS = 4
"""Starts of one flow run: an automation schedules a crashed one again (deployments/automations), this ends it."""


class ServerGone(RuntimeError):
    """The Prefect server went away in the middle of a run."""

    def __init__(self, run_id: str, error: Exception) -> None:
        super().__init__(
            f"the Prefect server does not answer any more ({error}); what was committed is kept: when it is back, "
            f"`afm runs resume {run_id}` continues"
        )


def server_answers() -> bool:
    """Whether the Prefect server is there. What Prefect raises when it is not takes many forms."""
    url = PREFECT_API_URL.value()
    try:
        return url is None or httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.HTTPError:
        return False


@contextmanager
def open_session(
    profile: str,
    config_file: str | None,
    overrides: Sequence[str],
    refresh: Iterable[str],
    run_id: str | None,
    until: RoadStage,
    pool: Mapping[str, Any] | None = None,
) -> Iterator[RunSession]:
    """The session of a run, closed with the block; `pool`: the parameters of a retraining.

    A failure of the block is shown as the artifact `failure` of the flow run, and raised again.

    Raises:
        ConfigError: a wrong configuration, an unreachable store, or a crash loop.
    """
    outlive_reader()
    session: RunSession | None = None
    try:
        _refuse_crash_loop()
        config = load_config(profile, Path(config_file) if config_file else None, overrides)
        parameters = {
            "profile": profile,
            "config_file": config_file,
            "overrides": list(overrides),
            "refresh": sorted(refresh),
            "until": until.value,
            **(pool or {}),
        }
        session = RunSession(config, run_id or new_run_id(), refresh, parameters, until)
        session.record.links.flow_run = flow_run.id
        if pool is not None:
            session.stages |= {"pool"}
        with session:
            try:
                _name_flow_run(session)
                yield session
            except (ConfigError, StageFailed):
                raise
            except Exception as error:
                if server_answers():
                    raise
                raise ServerGone(session.record.run_id, error) from error
    except Exception as error:
        _show_failure(session, error)
        raise


def _refuse_crash_loop() -> None:
    starts = int(flow_run.get_run_count() or 0)
    if starts > MAXIMUM_STARTS:
        raise ConfigError(
            f"this flow run was started {MAXIMUM_STARTS} times and crashed each time; read the logs of its stages "
            "(`afm runs ls`, `afm runs logs ID`), mend the cause, and start it again"
        )


def _name_flow_run(session: RunSession) -> None:
    """The flow run is called after the run, and found by profile."""
    if not flow_run.id:
        return
    profile = session.config.profile
    with get_client(sync_client=True) as client:
        client.update_flow_run(
            UUID(flow_run.id),
            name=f"{profile} {session.record.run_id}",
            tags=sorted({*flow_run.tags, f"profile:{profile}"}),
        )


def _show_failure(session: RunSession | None, error: Exception) -> None:
    if not flow_run.id:
        return
    stage = error.stage if isinstance(error, StageFailed) else ""
    page = failure_page(
        message=str(error) or type(error).__name__,
        run_id=session.record.run_id if session else "",
        stage=stage,
        kind=error.kind if isinstance(error, StageFailed) else "",
        log=session.directory.log_tail(stage) if session and stage else (),
        log_path=str(session.directory.log_of(stage)) if session and stage else "",
    )
    with suppress(httpx.HTTPError):  # the server is away: the terminal and the record say why
        create_markdown_artifact(key="failure", markdown=page, description="Why the run failed")
