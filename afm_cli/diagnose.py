"""`afm diagnose`: which experts of a mixture-of-experts model the texts of a domain use."""

from pathlib import Path
from typing import Any

import click

from afm_cli.common import config_options, emit, json_option, resolve_config, say
from afm_cli.execute import execute


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
    from afm_cli.failure import failure_document
    from afm_core.execution import new_run_id

    run_id = new_run_id()
    with failure_document(run_id, as_json):
        document, figures, page = _diagnose(run_id, model, domains, profile, config_file, overrides)
    if as_json:
        emit({**document, "figures": figures, "page": page})
        return
    for name, one in figures["figures"].items():
        values = "  ".join(f"{key} {one[key]['value']:.3f}" for key in ("specialization", "isolation", "load"))
        click.echo(f"{name:<16} {one['tokens']:>10,} tokens  {values}")
    click.echo(f"diagnosis: {document['artifact']['digest']}")
    click.echo(f"page: {page}")


def _diagnose(
    run_id: str,
    model: str,
    domains: tuple[str, ...],
    profile: str,
    config_file: Path | None,
    overrides: tuple[str, ...],
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The run's document, the figures, and where the page is."""
    import json

    from afm_cli.run import stop_on_signals
    from afm_core.config import home
    from afm_core.execution import RunSession, RunStatus, checked_domains, names_source, stored_model

    source = names_source(model)
    asked = (*overrides, *_domain_overrides(domains), *((f"model.source={model}",) if source else ()))
    config = resolve_config(profile, config_file, asked)
    checked_domains(config)
    stop_on_signals()
    say(f"run {run_id} (profile {profile}); records in {home() / 'runs' / run_id}")
    parameters = {"profile": profile, "model": model, "overrides": list(asked)}
    with RunSession(config, run_id, (), parameters) as session:
        ref = execute(session, "base", {}).artifact if source else stored_model(session, model)
        stage = execute(session, "diagnose", {"model": ref})
        record = session.finish(status=RunStatus.COMPLETED)
        path = session.store.open(stage.artifact).path
    document = {
        "run_id": record.run_id,
        "status": record.status.value,
        "model": ref.model_dump(mode="json"),
        "artifact": stage.artifact.model_dump(mode="json"),
        "cached": stage.cached,
        "seconds": stage.seconds,
    }
    return document, json.loads((path / "diagnosis.json").read_text()), str(path / "diagnosis.html")


def _domain_overrides(domains: tuple[str, ...]) -> list[str]:
    from afm_core.config import ConfigError

    found = []
    for text in domains:
        name, sign, file = text.partition("=")
        if not sign or not file or not name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(f"--domains {text!r}: write NAME=FILE, the name in letters, digits, - and _")
        found.append(f"diagnose.domains.{name}={_quoted(str(Path(file).expanduser()))}")
    return found


def _quoted(value: str) -> str:
    """A text as a TOML string: a file called 12 is no number."""
    import json

    return json.dumps(value)
