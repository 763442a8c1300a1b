"""What commands share: JSON or text output, the configuration options, the store of the working directory."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from afm_core.config import RunConfig
    from afm_core.store import Artifact, Store

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


@contextmanager
def writing(path: Path) -> "Iterator[Path]":
    """Write a file whole or not at all: the block fills the temporary file it is given.

    Raises:
        ConfigError: `path` cannot be written.
    """
    from afm_core.config import ConfigError

    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def resolve_config(profile: str, config_file: Path | None, overrides: tuple[str, ...]) -> "RunConfig":
    """The resolved configuration of the options above."""
    from afm_core.config import load_config

    return load_config(profile, config_file, overrides)


def open_configured_store(uri: str = "") -> "Store":
    """The store at `uri`, or `$AFM_STORE`, or `$AFM_HOME/store`, for reading: nothing is made.

    Raises:
        ConfigError: an unusable store, or one that was named and is not there. The default one is just empty before
        the first run.
    """
    from afm_core.config import ConfigError, home
    from afm_core.store import open_store

    named = uri or os.environ.get("AFM_STORE")
    store = open_store(named or str(home() / "store"), home() / "cache", create=False)
    if named and not store.exists:
        raise ConfigError(f"there is no store at {store.uri}: check the name; a run with store.uri={named} makes one")
    return store


def model_option(command: CommandT) -> CommandT:
    """`--model`: what `open_model` understands; the champion if it is left out."""
    text = "champion, a digest (or its first digits), a model directory, or a name of `afm models ls`."
    return click.option("--model", default="champion", show_default=True, metavar="REF", help=text)(command)


def open_model(config: "RunConfig", reference: str) -> tuple[Path, str]:
    """The directory of a model, and what names its weights.

    Raises:
        ConfigError: no such model, or nothing is registered as champion yet.
    """
    from afm_core.config import ConfigError
    from afm_core.training import cached_models

    directory = Path(reference).expanduser()
    if reference and directory.is_dir():
        if not (directory / "config.json").is_file():
            raise ConfigError(f"{directory} holds no Hugging Face model: config.json is missing")
        return directory, str(directory.resolve())
    for cached in cached_models():
        if cached["name"] == reference:
            return Path(cached["path"]), reference
    artifact = model_artifact(config, reference)
    return artifact.path, artifact.ref.digest


def model_artifact(config: "RunConfig", reference: str) -> "Artifact":
    """A model of the store: the champion, or a digest.

    Raises:
        ConfigError: no such artifact, no model, or nothing is registered as champion yet.
    """
    from afm_core.execution import find_model

    store = open_configured_store(config.store.uri)
    return store.open(find_model(store, config, reference))
