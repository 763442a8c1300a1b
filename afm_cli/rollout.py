"""`afm rollout`: the stage that demonstrates, alone: by a team of language models, or by rejection sampling."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import (
    config_options,
    json_option,
    model_artifact,
    open_configured_store,
    resolve_config,
    say,
)
from afm_cli.execute import as_run, execute

if TYPE_CHECKING:
    from afm_core.config import RunConfig
    from afm_core.store import ArtifactRef


@click.command()
@click.option("--tasks", metavar="REF", help="A tasks artifact. [default: the newest of the store]")
@click.option("--model", metavar="REF", help="Demonstrate with this model of the store (champion or a digest).")
@config_options
@json_option
def rollout(
    tasks: str | None,
    model: str | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Demonstrate the training tasks, each several times, and keep the best; every rollout stays in the artifact.

    \b
    Examples:
      afm rollout --config team.toml
      afm rollout --model champion --set team.rollouts=8 --set team.temperature=1.0

    Without --model the team of [team] plays: set team.endpoints (docs/teacher.md). `afm trajectories show ID` shows a
    rollout, `afm artifacts show DIGEST` the counts.
    """
    demonstrate(tasks, model, profile, config_file, overrides, as_json)


def demonstrate(
    tasks: str | None,
    model: str | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run the stage as a run of its own, and print the result."""
    as_run(lambda run_id: _demonstrate(run_id, tasks, model, profile, config_file, overrides), _show, as_json)


def _demonstrate(
    run_id: str,
    tasks: str | None,
    model: str | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
) -> dict[str, Any]:
    from afm_cli.run import stop_on_signals
    from afm_core.config import home
    from afm_core.execution import RoadStage, RunSession, RunStatus

    config = resolve_config(profile, config_file, overrides)
    stage, inputs = _inputs(config, tasks, model)
    parameters = {
        "profile": profile,
        "config_file": str(config_file) if config_file else None,
        "overrides": list(overrides),
        "tasks": inputs["tasks"].digest,
        "teacher": inputs["policy"].digest if "policy" in inputs else None,
    }
    stop_on_signals()
    say(f"run {run_id} (profile {profile}); records in {home() / 'runs' / run_id}")
    with RunSession(config, run_id, (), parameters, RoadStage.TEACH) as session:
        made = execute(session, stage, inputs)
        record = session.finish(status=RunStatus.COMPLETED)
    return {
        "run_id": record.run_id,
        "status": record.status.value,
        "inputs": {name: ref.model_dump(mode="json") for name, ref in inputs.items()},
        "stages": [made.model_dump(mode="json", include={"name", "cached", "seconds", "artifact", "metrics"})],
        "artifact": made.artifact.model_dump(mode="json"),
    }


def _inputs(config: "RunConfig", tasks: str | None, model: str | None) -> "tuple[str, dict[str, ArtifactRef]]":
    """The stage and what it is given. Raises ConfigError before anything starts."""
    from afm_core.config import ConfigError
    from afm_core.execution.preflight import check_keys
    from afm_core.execution.rl_inputs import task_inputs
    from afm_core.store import ArtifactKind

    if model is None and not config.team.served:
        raise ConfigError(
            "nobody is there to demonstrate: set team.endpoints (docs/teacher.md shows how), or give --model to sample "
            "from a model of the store"
        )
    if model is None:
        check_keys(config)
    store = open_configured_store(config.store.uri)
    found, corpus, origins = task_inputs(store, store.find(tasks, ArtifactKind.TASKS) if tasks else None)
    inputs = {"corpus": corpus, "tasks": found}
    for role, origin in origins.items():
        say(f"  {role:<8} {inputs[role].kind}:{inputs[role].digest[:12]} ({origin})")
    if model is None:
        return "rollout", inputs
    return "sample", {**inputs, "policy": model_artifact(config, model).ref}


def _show(document: dict[str, Any]) -> None:
    (stage,) = document["stages"]
    for name, value in stage["metrics"].items():
        click.echo(f"{name:<24} {f'{value:.6g}' if isinstance(value, float) else value}")
    click.echo(f"demonstrations: {document['artifact']['digest']}")
