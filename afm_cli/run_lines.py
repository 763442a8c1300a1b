"""A run in lines for the terminal, and its short form for `afm runs ls --json`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afm_core.execution import RunRecord, RunStatus


def summary(record: "RunRecord") -> dict[str, Any]:
    """What the list says of a run; `champion` has the outcome of the gate, once it has decided."""
    names = {"run_id", "profile", "status", "started", "seconds", "report", "progress", "pool", "champion", "error"}
    return record.model_dump(mode="json", include=names)


def known_statuses(names: tuple[str, ...]) -> "set[RunStatus]":
    """The statuses of those names; raises ConfigError listing the known ones."""
    from afm_core.config import ConfigError
    from afm_core.execution import RunStatus

    known = [status.value for status in RunStatus]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"no run has the status {unknown[0]!r}; there are {', '.join(known)}")
    return {RunStatus(name) for name in names}


def at_work(record: "RunRecord") -> list[str]:
    """A line a stage in progress."""
    from afm_core.execution import RunStatus, duration

    if record.status is not RunStatus.RUNNING:
        return []
    lines = []
    for label, one in record.progress.items():
        left = "" if one.seconds_left is None else f", {duration(one.seconds_left)} left"
        lines.append(f"{label} {one.done}/{one.total}{left}")
    return lines


def spend_line(record: "RunRecord") -> str:
    """Seconds, tokens and money, as far as there are any."""
    from afm_core.execution import duration, spend_of

    spend = spend_of(record)
    parts = [duration(spend.seconds)]
    parts += [f"{spend.tokens_sampled:,} tokens sampled"] if spend.tokens_sampled else []
    parts += [f"{spend.tokens_trained:,} tokens trained"] if spend.tokens_trained else []
    parts += [f"cost {spend.money:.2f}"] if spend.money else []
    return f"spend: {', '.join(parts)}"


def link_lines(record: "RunRecord") -> Iterator[str]:
    """Where else the run is seen."""
    links = record.links
    if links.flow_run:
        yield f"Prefect flow run: {links.flow_run}"
    if links.mlflow_run:
        yield f"MLflow run: {links.mlflow_run}"
    if links.mlflow_file:
        yield f"MLflow, no server: mlflow ui --backend-store-uri {links.mlflow_file}"
    for label, job in links.ray_jobs.items():
        yield f"Ray job of {label}: {links.ray_dashboard}/#/jobs/{job}"
