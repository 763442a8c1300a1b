"""`afm diagnose`: which experts of a mixture-of-experts model the texts of a domain use."""

import json
from pathlib import Path
from typing import Any

import click

from afm_cli.common import config_options, json_option, resolve_config, say
from afm_cli.execute import as_run, execute


@click.command()
@click.option(
    "--model",
    default="champion",
    show_default=True,
    metavar="REF",
    help="champion, a digest, a model directory, s3://bucket/path, or a hub id.",
)
@click.option(
    "--domains", "domains", multiple=True, metavar="NAME=FILE", help="Texts of a domain: JSONL, parquet or plain text."
)
@config_options
@json_option
def diagnose(
    model: str,
    domains: tuple[str, ...],
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Route texts of several domains through a model; write figures, selections of experts, and a page.

    \b
    Examples:
      afm diagnose --model ./qwen3-moe --domains code=code.jsonl --domains prose=prose.jsonl
      afm diagnose --model 3f9c2a10 --domains math=math.parquet --set diagnose.tokens=1000000

    A selection is trained with --set sft.experts.diagnosis=DIGEST --set sft.experts.domain=NAME, see docs/experts.md.
    """
    diagnose_model(model, _files(domains), profile, config_file, overrides, as_json)


def diagnose_model(
    model: str,
    domains: dict[str, str],
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Diagnose as a run of its own, and print the result. `domains`: name -> file, beside the configuration's."""
    as_run(lambda run_id: _diagnose(run_id, model, domains, profile, config_file, overrides), _show, as_json)


def _diagnose(
    run_id: str,
    model: str,
    domains: dict[str, str],
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
) -> dict[str, Any]:
    from afm_cli.run import stop_on_signals
    from afm_core.config import home
    from afm_core.execution import (
        RunSession,
        RunStatus,
        checked_domains,
        diagnosis_overrides,
        find_model,
        names_source,
    )

    asked = (*overrides, *diagnosis_overrides(model, domains))
    config = resolve_config(profile, config_file, asked)
    checked_domains(config)
    stop_on_signals()
    say(f"run {run_id} (profile {profile}); records in {home() / 'runs' / run_id}")
    parameters = {
        "profile": profile,
        "config_file": str(config_file) if config_file else None,
        "overrides": list(asked),
        "diagnosed": model,
    }
    with RunSession(config, run_id, (), parameters) as session:
        given = None if names_source(model) else find_model(session.store, config, model)
        ref = given or execute(session, "base", {}).artifact
        stage = execute(session, "diagnose", {"model": ref})
        record = session.finish(status=RunStatus.COMPLETED)
        path = session.store.open(stage.artifact).path
    return {
        "run_id": record.run_id,
        "status": record.status.value,
        "model": ref.model_dump(mode="json"),
        "artifact": stage.artifact.model_dump(mode="json"),
        "cached": stage.cached,
        "seconds": stage.seconds,
        "figures": json.loads((path / "diagnosis.json").read_text()),
        "page": str(path / "diagnosis.html"),
    }


def _files(domains: tuple[str, ...]) -> dict[str, str]:
    from afm_core.config import ConfigError

    found = {}
    for text in domains:
        name, _, file = text.partition("=")
        if not name or not file:
            raise ConfigError(f"--domains {text!r}: write NAME=FILE")
        found[name] = str(Path(file).expanduser())
    return found


def _show(document: dict[str, Any]) -> None:
    for name, one in document["figures"]["figures"].items():
        values = "  ".join(f"{key} {one[key]['value']:.3f}" for key in ("specialization", "isolation", "load"))
        click.echo(f"{name:<16} {one['tokens']:>10,} tokens  {values}")
    click.echo(f"diagnosis: {document['artifact']['digest']}")
    click.echo(f"page: {document['page']}")
