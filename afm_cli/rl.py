"""`afm rl`: selection and reinforcement learning alone, on a model of the store; or training on saved rollouts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from afm_cli.common import (
    config_options,
    emit,
    json_option,
    model_artifact,
    model_option,
    open_configured_store,
    open_model,
    resolve_config,
    say,
)
from afm_cli.execute import as_run, execute

if TYPE_CHECKING:
    from afm_core.config import RunConfig
    from afm_core.execution import RunSession
    from afm_core.execution.rl_inputs import RlInputs
    from afm_core.store import ArtifactRef

_EXPERIENCE = "experience.parquet"


@click.command()
@model_option
@click.option("--tasks", metavar="REF", help="A tasks artifact. [default: the model's own, else the newest]")
@click.option(
    "--replay",
    type=click.Path(path_type=Path),
    metavar="STEP_DIR",
    help="Train on the rollouts saved in a step's directory; nothing is sampled.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where --replay writes. [default: ./replay-STEP]")
@config_options
@json_option
def rl(
    model: str,
    tasks: str | None,
    replay: Path | None,
    out: Path | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train a model by reinforcement learning with tools: the stages select and rl of a run, on a given model.

    \b
    Examples:
      afm rl --model champion --set rl.steps=10
      afm rl --model 3f9c2a10 --profile smoke
      afm rl --replay sidecar/rollouts/step-000001 --model 3f9c2a10

    Rollouts are kept in the new model's artifact below sidecar/rollouts; `afm trajectories show` reads them.
    """
    if replay is not None:
        if tasks is not None:
            raise click.UsageError("--replay trains on saved rollouts and takes no --tasks")
        _replay(replay, out, model, resolve_config(profile, config_file, overrides), as_json)
        return
    if out is not None:
        raise click.UsageError("--out is for --replay; a trained model goes to the store")
    train(model, tasks, profile, config_file, overrides, as_json)


def train(
    model: str,
    tasks: str | None,
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run selection and RL as a run of their own, and print the result."""
    as_run(lambda run_id: _train(run_id, model, tasks, profile, config_file, overrides), _show, as_json)


def _train(
    run_id: str, model: str, tasks: str | None, profile: str, config_file: Path | None, overrides: tuple[str, ...]
) -> dict[str, Any]:
    from afm_cli.run import stop_on_signals
    from afm_core.config import home
    from afm_core.execution import RoadStage, RunSession

    config = resolve_config(profile, config_file, overrides)
    inputs = _inputs(config, model, tasks)
    parameters = {
        "profile": profile,
        "config_file": str(config_file) if config_file else None,
        "overrides": list(overrides),
        "model": inputs.policy.digest,
        "tasks": inputs.tasks.digest,
    }
    stop_on_signals()
    say(f"run {run_id} (profile {profile}); records in {home() / 'runs' / run_id}")
    for role, origin in inputs.origins.items():
        ref: ArtifactRef = getattr(inputs, role)
        say(f"  {role:<18} {ref.kind}:{ref.digest[:12]} ({origin})")
    with RunSession(config, run_id, (), parameters, RoadStage.RL) as session:
        return _run(session, inputs)


def _inputs(config: "RunConfig", model: str, tasks: str | None) -> "RlInputs":
    """The artifacts to train with; a stage's inputs are artifacts, so a directory will not do for a model."""
    from afm_core.config import ConfigError
    from afm_core.execution.rl_inputs import rl_inputs
    from afm_core.store import ArtifactKind

    if config.rl.steps == 0:
        raise ConfigError("rl.steps is 0, so there is nothing to train: give for example --set rl.steps=6")
    if model and Path(model).expanduser().is_dir():
        raise ConfigError(
            f"{model} is a directory, and RL trains a model of the store: give champion or a digest (`afm artifacts ls "
            f"--kind model`); `afm run --set model.source={model}` takes the directory on the whole road"
        )
    store = open_configured_store(config.store.uri)
    policy = model_artifact(config, model).ref
    return rl_inputs(store, policy, store.find(tasks, ArtifactKind.TASKS) if tasks else None)


def _run(session: "RunSession", inputs: "RlInputs") -> dict[str, Any]:
    """The two stages, one after the other, with the report; returns what `--json` prints."""
    from afm_core.evaluation.report import collect, write_report
    from afm_core.evaluation.rl_results import load_rl
    from afm_core.execution import RunStatus

    held = {"policy": inputs.policy, "tasks": inputs.tasks, "corpus": inputs.corpus}
    selected = execute(session, "select", {**held, "base": inputs.base})
    trained = execute(session, "rl", {**held, "selected": selected.artifact})
    record = session.finish(status=RunStatus.COMPLETED, report=str(session.directory.report))
    write_report(collect(record.model_dump(mode="json"), session.store), session.directory.report)
    fields = ("name", "cached", "seconds", "artifact", "metrics")
    return {
        "run_id": record.run_id,
        "status": record.status.value,
        "inputs": {name: ref.model_dump(mode="json") for name, ref in {**held, "base": inputs.base}.items()},
        "stages": [one.model_dump(mode="json", include=set(fields)) for one in (selected, trained)],
        "artifact": trained.artifact.model_dump(mode="json"),
        "rl": load_rl(session.store.open(trained.artifact).path),
        "report": record.report,
    }


def _replay(step: Path, out: Path | None, model: str, config: "RunConfig", as_json: bool) -> None:
    from afm_core.config import ConfigError

    if not (step / _EXPERIENCE).is_file():
        raise ConfigError(
            f"{step} is not the directory of an RL step: {_EXPERIENCE} is missing (they lie below sidecar/rollouts of "
            "a model that RL trained; `afm artifacts show DIGEST` prints where its files are)"
        )
    output = out or Path(f"replay-{step.resolve().name}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} is there already: give another --out")
    directory, version = open_model(config, model)
    from afm_core.training.rl.replay import replay

    say(f"training {version[:12]} on {step / _EXPERIENCE} ...")
    record = replay(step, directory, config.rl, output)
    if as_json:
        emit({"model": version, "step": str(step), "output": str(output), "update": record})
        return
    for name, value in record.items():
        click.echo(f"{name:<24} {f'{value:.6g}' if isinstance(value, float) else value}")
    click.echo(f"written: {output}")


def _show(document: dict[str, Any]) -> None:
    from rich.console import Console

    from afm_core.evaluation.rl_results import end_words, rl_table

    console = Console()
    if document["rl"]:
        console.print(rl_table(document["rl"]))
        for warning in document["rl"].get("warnings", ()):
            console.print(f"warning: {warning}", highlight=False)
        console.print(end_words(document["rl"]), highlight=False, soft_wrap=True)
    console.print(f"model: {document['artifact']['digest']}", highlight=False, soft_wrap=True)
    console.print(f"report: {document['report']}", highlight=False, soft_wrap=True)
