"""`afm run`: the whole pipeline of a profile through Prefect, with or without a running server."""

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import config_options, emit, json_option, resolve_config, say

if TYPE_CHECKING:
    from afm_core.execution import RoadStage


@click.command()
@config_options
@click.option("--refresh", multiple=True, metavar="STAGE", help="Make a new generation of a cached stage; repeatable.")
@click.option(
    "--until",
    default="rl",
    show_default=True,
    metavar="STAGE",
    help="End after this stage: corpus, tasks, teach, curate, base, sft, select or rl; what is trained is evaluated.",
)
@click.option("--plan", is_flag=True, help="Show stages, keys, what is cached and the memory estimate; run nothing.")
@click.option("--no-wait", is_flag=True, help="Fail at once if another run holds a stage, instead of waiting.")
@json_option
def run(
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    refresh: tuple[str, ...],
    until: str,
    plan: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Run the whole pipeline of a profile.

    \b
    Examples:
      afm run --profile smoke
      afm run --profile laptop --set sft.learning_rate=1e-4
      afm run --refresh sft
      afm run --until sft
    """
    from afm_core.execution import road_stage

    end = road_stage(until)
    if no_wait:
        overrides = (*overrides, "execution.wait_for_lease=false")
    if plan:
        _show_plan(resolve_config(profile, config_file, overrides), refresh, end, as_json)
        return
    execute(profile, config_file, overrides, refresh, end, as_json)


def execute(
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    refresh: tuple[str, ...],
    until: "RoadStage",
    as_json: bool,
) -> None:
    """Run the flow and print its result."""
    from afm_cli.failure import failure_document
    from afm_core.execution import new_run_id, open_run_store, stage_named

    run_id = new_run_id()
    with failure_document(run_id, as_json):
        for name in refresh:
            stage_named(name)
        open_run_store(resolve_config(profile, config_file, overrides))
        parameters = {
            "profile": profile,
            "overrides": list(overrides),
            "config_file": str(config_file) if config_file else None,
            "refresh": list(refresh),
            "run_id": run_id,
            "until": until,
        }
        document = run_flow("pipeline", parameters)
    if as_json:
        emit(document)
    else:
        show_result(document)


def run_flow(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Run the flow `flows.NAME:NAME` on the configured Prefect server or one of its own; returns its document."""
    import importlib
    import os

    from afm_core.config import home
    from flows.embedded import embedded_server, wait_until_healthy

    # What fails is told in one line by `main`; Prefect's own account of it is in the Prefect run.
    if "AFM_DEBUG" not in os.environ:
        for part in ("HANDLERS_CONSOLE", "INTERNAL"):
            os.environ.setdefault(f"PREFECT_LOGGING_{part}_LEVEL", "CRITICAL")
        logging.raiseExceptions = False  # log lines that a server which is away does not get are no news
    stop_on_signals()
    run_id = parameters["run_id"]
    say(f"run {run_id} (profile {parameters['profile']}); records in {home() / 'runs' / run_id}")
    with embedded_server(home()) as ours:
        import httpx

        from flows.session import ServerGone

        flow = getattr(importlib.import_module(f"flows.{name}"), name)
        wait_until_healthy(ours=ours)
        try:
            document: dict[str, Any] = flow(**parameters)
        except httpx.TransportError as error:  # Prefect could not even say how the flow ended
            raise ServerGone(run_id, error) from error
    return document


def stop_on_signals() -> None:
    """SIGTERM and SIGINT both end the run in order: stages seal a checkpoint, the record says cancelled.

    SIGINT too, because a shell starts background jobs with it ignored.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def show_result(document: dict[str, Any]) -> None:
    """Print a run's tables, what the gate said, and where the report is."""
    from rich.console import Console

    from afm_core.evaluation.report import result_table

    console = Console()
    console.print(result_table(document))
    champion = document.get("champion")
    if champion:
        console.print(f"gate: {champion.get('outcome')} ({champion.get('reason')})", highlight=False)
    console.print(f"report: {document['report']}", highlight=False, soft_wrap=True)


def _show_plan(config: Any, refresh: tuple[str, ...], until: "RoadStage", as_json: bool) -> None:
    from afm_core.execution.plan import plan_run

    steps = plan_run(config, refresh, until)
    if as_json:
        emit({"profile": config.profile, "stages": [step.model_dump(mode="json") for step in steps]})
        return
    for step in steps:
        state = "cached" if step.cached else "to do"
        key = step.key[:24] if step.key else "key follows from its inputs"
        click.echo(f"{step.name:<20} {state:<7} {key:<28} {step.resources}")
