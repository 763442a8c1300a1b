"""From a flow's parameters to a run in progress."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect.runtime import flow_run

from afm_core.config import ConfigError, load_config
from afm_core.execution import RoadStage, RunSession, new_run_id

MAXIMUM_STARTS = 4
"""Starts of one flow run: an automation schedules a crashed one again (deployments/automations), this ends it."""


def open_session(
    profile: str,
    config_file: str | None,
    overrides: Sequence[str],
    refresh: Iterable[str],
    run_id: str | None,
    until: RoadStage,
    pool: Mapping[str, Any] | None = None,
) -> RunSession:
    """The session of a run; `pool`: the parameters of a retraining.

    Raises:
        ConfigError: a wrong configuration, an unreachable store, or a crash loop.
    """
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
    if pool is not None:
        session.stages |= {"pool"}
    return session


def _refuse_crash_loop() -> None:
    starts = int(flow_run.get_run_count() or 0)
    if starts > MAXIMUM_STARTS:
        raise ConfigError(
            f"this flow run was started {MAXIMUM_STARTS} times and crashed each time; read the logs of its stages "
            "(`afm runs ls`, `afm runs logs ID`), mend the cause, and start it again"
        )
