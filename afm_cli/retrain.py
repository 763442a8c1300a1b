"""`afm retrain`: train for the new tasks of a task pool, through Prefect, with or without a running server."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from afm_cli.common import config_options, emit, json_option, resolve_config, say
from afm_cli.tasks import pool_option

if TYPE_CHECKING:
    from afm_core.execution import RoadStage


@click.command()
@pool_option
@click.option("--version", type=click.IntRange(min=1), help="A version of the pool. [default: the newest]")
@config_options
@click.option("--refresh", multiple=True, metavar="STAGE", help="Make a new generation of a cached stage; repeatable.")
@click.option(
    "--until", default="rl", show_default=True, metavar="STAGE", help="End after this stage, as in `afm run`."
)
@json_option
def retrain(
    pool: str,
    version: int | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    refresh: tuple[str, ...],
    until: str,
    as_json: bool,
) -> None:
    """Train for what a task pool has that the champion does not know; the gate decides on new and old tasks apart.

    Only new tasks are demonstrated; everything older is reused. Exit code 0 whether the new model wins or not: the
    decision and its reason are in the result.

    \b
    Examples:
      afm retrain --profile smoke
      afm retrain --set sft.start=champion --set curation.replay_share=0.3 --until sft
    """
    from afm_core.execution import road_stage

    execute(pool, version, profile, config_file, overrides, refresh, road_stage(until), as_json)


def execute(
    pool: str,
    version: int | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    refresh: tuple[str, ...],
    until: "RoadStage",
    as_json: bool,
) -> None:
    """Run the flow and print its result."""
    from afm_cli.failure import failure_document
    from afm_cli.run import run_flow, show_result
    from afm_core.execution import new_run_id, open_run_store, stage_named
    from afm_core.taskcraft import find_version

    run_id = new_run_id()
    with failure_document(run_id, as_json):
        for name in refresh:
            stage_named(name)
        found = find_version(open_run_store(resolve_config(profile, config_file, overrides)), pool, version)
        say(f"training for task pool {found}")
        parameters = {
            "profile": profile,
            "pool": pool,
            "version": found.version,
            "overrides": list(overrides),
            "config_file": str(config_file) if config_file else None,
            "refresh": list(refresh),
            "run_id": run_id,
            "until": until,
        }
        document = run_flow("retrain", parameters)
    if as_json:
        emit(document)
    else:
        show_result(document)
