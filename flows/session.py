"""From a flow's parameters to a run in progress."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from afm_core.config import load_config
from afm_core.execution import RoadStage, RunSession, new_run_id


def open_session(
    profile: str,
    config_file: str | None,
    overrides: Sequence[str],
    refresh: Iterable[str],
    run_id: str | None,
    until: RoadStage,
) -> RunSession:
    """The session of a run. Raises ConfigError for a wrong configuration or an unreachable store."""
    config = load_config(profile, Path(config_file) if config_file else None, overrides)
    parameters = {
        "profile": profile,
        "config_file": config_file,
        "overrides": list(overrides),
        "refresh": sorted(refresh),
        "until": until.value,
    }
    return RunSession(config, run_id or new_run_id(), refresh, parameters, until)
