"""`afm runs`: list, show, compare, read, cancel and resume runs from their records."""

from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import emit, json_option, say
from afm_cli.run_lines import at_work, known_statuses, link_lines, spend_line, summary
from afm_cli.run_logs import LogReader

if TYPE_CHECKING:
    from afm_core.execution import RunRecord

_FOLLOW_SECONDS = 0.5


@click.group()
def runs() -> None:
    """List, compare, read, cancel and resume runs.

    Example: afm runs show last
    """


@runs.command("ls")
@click.option("--status", "statuses", multiple=True, metavar="STATUS", help="Only runs of this status; repeatable.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the newest so many.")
@json_option
def list_all(statuses: tuple[str, ...], limit: int | None, as_json: bool) -> None:
    """List the runs of this home, newest first; of a running one the stages at work and the time they still take.

    \b
    Examples:
      afm runs ls
      afm runs ls --status running --status died --limit 10
    """
    from afm_core.config import home
    from afm_core.execution import list_runs

    wanted = known_statuses(statuses)
    records = [one for one in list_runs(home()) if not wanted or one.status in wanted][:limit]
    if as_json:
        emit([summary(record) for record in records])
        return
    for record in records:
        line = f"{record.run_id}  {record.profile:<10} {record.status:<10} {record.seconds or 0:>8.1f} s"
        click.echo("; ".join((f"{line}  {len(record.stages)} stages", *at_work(record))))
    if not records:
        say(f"no runs{' of that status' if wanted else ''} in {home() / 'runs'}; start one with `afm run`")


@runs.command()
@click.argument("run", default="last")
@json_option
def show(run: str, as_json: bool) -> None:
    """Show one run: its stages, models and report, what it cost, and where else it is seen.

    Example: afm runs show last
    """
    from dataclasses import asdict

    from rich.console import Console

    from afm_core.config import home
    from afm_core.evaluation.report import result_table
    from afm_core.execution import find_run, spend_of

    record = find_run(home(), run).load()
    if as_json:
        emit({**record.model_dump(mode="json", exclude={"memory_series"}), "spend": asdict(spend_of(record))})
        return
    Console().print(result_table(record.model_dump(mode="json")))
    click.echo(f"status: {record.status}")
    for line in (*at_work(record), spend_line(record), *link_lines(record)):
        click.echo(line)
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
@click.option("--follow", "-f", is_flag=True, help="Go on until the run has ended.")
def logs(run: str, stage: str | None, follow: bool) -> None:
    """Print the log of a run's stage, or of all.

    \b
    Examples:
      afm runs logs last sft
      afm runs logs last --follow
    """
    import time

    from afm_core.config import home
    from afm_core.execution import RunStatus, find_run

    directory = find_run(home(), run)
    reader = LogReader(directory, stage)
    while True:
        running = directory.load().status is RunStatus.RUNNING
        reader.print_new()
        if not (follow and running):
            break
        time.sleep(_FOLLOW_SECONDS)
    if not follow:
        reader.require_something()


@runs.command()
@click.argument("run", default="last")
def cancel(run: str) -> None:
    """Stop a run, wherever it runs; what is sealed or committed stays.

    A run of this machine is told directly, and stops its stages and Ray jobs. One that belongs to a Prefect server is
    cancelled there (PREFECT_API_URL), so that the worker that has it stops it. Of a run that died, the Ray jobs that go
    on are stopped.

    Example: afm runs cancel last
    """
    from afm_cli.cancel import cancel_run
    from afm_core.config import home
    from afm_core.execution import find_run

    for line in cancel_run(find_run(home(), run).load()):
        say(line)


@runs.command()
@click.argument("run", default="last")
@json_option
def resume(run: str, as_json: bool) -> None:
    """Run again with the same configuration: finished stages are cached, the others continue.

    Example: afm runs resume last
    """
    from pathlib import Path

    from afm_cli.diagnose import diagnose_model
    from afm_cli.rl import train
    from afm_cli.rollout import demonstrate
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
    elif "diagnosed" in given:  # a run of `afm diagnose`, or of its flow
        diagnose_model(given["diagnosed"], {}, *layers, as_json)
    elif "teacher" in given:  # a run of `afm rollout`
        demonstrate(given["tasks"], given["teacher"], *layers, as_json)
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
