"""`afm runs`: list, show, compare, read, cancel and resume runs from their records."""

import os
import signal
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import emit, json_option, say

if TYPE_CHECKING:
    from afm_core.execution import RunRecord


@click.group()
def runs() -> None:
    """List, compare, read, cancel and resume runs.

    Example: afm runs show last
    """


@runs.command("ls")
@json_option
def list_all(as_json: bool) -> None:
    """List the runs of this home, newest first.

    Example: afm runs ls
    """
    from afm_core.config import home
    from afm_core.execution import list_runs

    records = list_runs(home())
    if as_json:
        emit([_summary(record) for record in records])
        return
    for record in records:
        line = f"{record.run_id}  {record.profile:<10} {record.status:<10} {record.seconds or 0:>8.1f} s"
        click.echo(f"{line}  {len(record.stages)} stages")
    if not records:
        say(f"no runs in {home() / 'runs'}; start one with `afm run`")


@runs.command()
@click.argument("run", default="last")
@json_option
def show(run: str, as_json: bool) -> None:
    """Show one run: its stages, models and report.

    Example: afm runs show last
    """
    from rich.console import Console

    from afm_core.config import home
    from afm_core.evaluation.report import result_table
    from afm_core.execution import find_run

    record = find_run(home(), run).load()
    if as_json:
        emit(record.model_dump(mode="json", exclude={"memory_series"}))
        return
    Console().print(result_table(record.model_dump(mode="json")))
    if record.error:
        click.echo(f"error: {record.error}")
    if record.report:
        click.echo(f"report: {record.report}")


@runs.command()
@click.argument("first")
@click.argument("second")
@json_option
def diff(first: str, second: str, as_json: bool) -> None:
    """Compare two runs: configuration keys and artifacts that differ.

    Example: afm runs diff 20261130-120000-ab12 last
    """
    from afm_core.config import home
    from afm_core.execution import find_run

    left, right = (find_run(home(), name).load() for name in (first, second))
    keys = _differences(left.config, right.config)
    digests = [{stage.name: stage.artifact.digest for stage in record.stages} for record in (left, right)]
    artifacts = _differences(*digests)
    if as_json:
        emit({"config": keys, "artifacts": artifacts})
        return
    for title, rows in (("configuration", keys), ("artifacts", artifacts)):
        click.echo(f"{title}: {'equal' if not rows else ''}")
        for row in rows:
            click.echo(f"  {row['key']}: {row['first']} -> {row['second']}")


@runs.command()
@click.argument("run", default="last")
@click.argument("stage", required=False)
def logs(run: str, stage: str | None) -> None:
    """Print the log of a run's stage, or of all.

    Example: afm runs logs last sft
    """
    from afm_core.config import ConfigError, home
    from afm_core.execution import find_run

    directory = find_run(home(), run)
    paths = sorted(directory.logs.glob("*.log"))
    if stage is not None:
        paths = [path for path in paths if path.stem == stage.replace(":", "-")]
        if not paths:
            known = ", ".join(path.stem for path in sorted(directory.logs.glob("*.log")))
            raise ConfigError(f"run {directory.run_id} has no log of stage {stage!r}; there are: {known or 'none'}")
    for path in paths:
        click.echo(f"==> {path.stem} <==")
        click.echo(path.read_text(encoding="utf-8", errors="replace"))


@runs.command()
@click.argument("run", default="last")
def cancel(run: str) -> None:
    """Stop a running run of this machine; what is sealed or committed stays.

    Example: afm runs cancel last
    """
    from afm_core.config import ConfigError, home
    from afm_core.execution import RunStatus, find_run

    record = find_run(home(), run).load()
    if record.status is not RunStatus.RUNNING or not _is_alive(record.pid, record.started):
        raise ConfigError(f"run {record.run_id} is not running on this machine (status {record.status})")
    os.kill(record.pid, signal.SIGTERM)
    say(f"run {record.run_id} is stopping")


@runs.command()
@click.argument("run", default="last")
@json_option
def resume(run: str, as_json: bool) -> None:
    """Run again with the same configuration: finished stages are cached, the others continue.

    Example: afm runs resume last
    """
    from pathlib import Path

    from afm_cli.rl import train
    from afm_cli.run import execute
    from afm_core.config import home
    from afm_core.execution import find_run, road_stage

    record = find_run(home(), run).load()
    given: dict[str, Any] = record.parameters
    file = given.get("config_file")
    layers = given["profile"], Path(file) if file else None, tuple(given.get("overrides", ()))
    if "pool" in given:  # a run of `afm retrain`
        from afm_cli.retrain import execute as retrain

        until = road_stage(given["until"])
        retrain(given["pool"], given["version"], *layers, _unfinished_refresh(record), until, as_json)
    elif "model" in given:  # a run of `afm rl`
        train(given["model"], given["tasks"], *layers, as_json)
    else:
        execute(*layers, _unfinished_refresh(record), road_stage(given.get("until", "rl")), as_json)


def _unfinished_refresh(record: "RunRecord") -> tuple[str, ...]:
    """The stages that the run was to make anew and has not. Of a stage with variants the record cannot tell: again."""
    from afm_core.execution import RunStatus

    if record.status is RunStatus.COMPLETED:
        return ()
    done = {stage.name for stage in record.stages}
    return tuple(name for name in record.parameters.get("refresh", ()) if name not in done)


def _summary(record: Any) -> dict[str, Any]:
    return record.model_dump(
        mode="json", include={"run_id", "profile", "status", "started", "seconds", "report", "pool", "champion"}
    )


def _differences(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    left, right = _flat(first), _flat(second)
    keys = sorted(left.keys() | right.keys())
    rows = ({"key": key, "first": left.get(key), "second": right.get(key)} for key in keys)
    return [row for row in rows if row["first"] != row["second"]]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _is_alive(pid: int, started: str) -> bool:
    """Whether the recorded process still is that run: it exists and did not start after the run did."""
    from datetime import datetime

    import psutil

    try:
        return psutil.Process(pid).create_time() <= datetime.fromisoformat(started).timestamp() + 1
    except psutil.Error:
        return False
