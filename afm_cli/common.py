"""What commands share: JSON or text output, the configuration options, the store of the working directory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from afm_core.config import RunConfig
    from afm_core.store import Store

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def json_option(command: CommandT) -> CommandT:
    """`--json`: one JSON document on standard output, nothing else there."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document on standard output.")(command)


def config_options(command: CommandT) -> CommandT:
    """`--profile`, `--config` and `--set`: the layers of a run's configuration."""
    for option in (
        click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="Override one key; repeatable."),
        click.option("--config", "config_file", type=click.Path(path_type=Path), help="A TOML file over the profile."),
        click.option("--profile", default="laptop", show_default=True, help="A shipped profile, see configs/."),
    ):
        command = option(command)
    return command


def emit(document: Any) -> None:
    """Print one JSON document on standard output."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def say(text: str) -> None:
    """Print for people, on standard error."""
    click.echo(text, err=True)


def resolve_config(profile: str, config_file: Path | None, overrides: tuple[str, ...]) -> "RunConfig":
    """The resolved configuration of the options above."""
    from afm_core.config import load_config

    return load_config(profile, config_file, overrides)


def open_configured_store(uri: str = "") -> "Store":
    """The store at `uri`, or `$AFM_STORE`, or `$AFM_HOME/store`."""
    import os

    from afm_core.config import home
    from afm_core.store import open_store

    return open_store(uri or os.environ.get("AFM_STORE") or str(home() / "store"), home() / "cache")
