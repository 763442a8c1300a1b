"""Layered configuration: a shipped profile, then the user's file, then `--set a.b=c`; resolved JSON comes out.

A profile may name another in its top-level key `extends`. Unknown keys are refused with the nearest valid one.
"""

import difflib
import hashlib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from afm_core.config.base import Section
from afm_core.config.errors import ConfigError
from afm_core.config.sections import RunConfig

PROFILES = Path(__file__).parents[2] / "configs"


def home() -> Path:
    """`$AFM_HOME`, default `.afm` in the working directory."""
    return Path(os.environ.get("AFM_HOME") or ".afm").resolve()


def profile_names() -> list[str]:
    """The shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.toml"))


def load_config(profile: str, file: Path | None = None, overrides: Iterable[str] = ()) -> RunConfig:
    """Resolve a run's configuration.

    Raises:
        ConfigError: an unknown profile or key, a wrong type, an impossible combination, an unreadable file.
    """
    layers = [_profile_layer(profile)]
    if file is not None:
        layers.append(_read_toml(file))
    layers.extend(_override(text) for text in overrides)
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer)
    merged["profile"] = profile
    return _with_file_digests(parse_config(merged))


def parse_config(values: Mapping[str, Any]) -> RunConfig:
    """Validate plain values (TOML or resolved JSON) into a RunConfig; raises ConfigError naming the key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_explain(error)) from error


def resolved_json(config: RunConfig) -> str:
    """The resolved configuration as canonical JSON text."""
    return json.dumps(config.model_dump(mode="json"), indent=2, sort_keys=True)


def merge(base: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge of tables; any other value of `layer` replaces that of `base`."""
    result = dict(base)
    for key, value in layer.items():
        old = result.get(key)
        result[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _with_file_digests(config: RunConfig) -> RunConfig:
    """The digests of the user's files stand for the files in stage keys: an edited file is another input."""
    changes: dict[str, Section] = {}
    if config.tasks.file is not None:
        path, digest = _digest("tasks.file", config.tasks.file)
        changes["tasks"] = config.tasks.model_copy(update={"file": path, "file_sha256": digest})
    if config.diagnose.domains:
        found = {name: _digest(f"diagnose.domains.{name}", file) for name, file in config.diagnose.domains.items()}
        update = {
            "domains": {name: path for name, (path, _) in found.items()},
            "sha256": {name: digest for name, (_, digest) in found.items()},
        }
        changes["diagnose"] = config.diagnose.model_copy(update=update)
    return config.model_copy(update=changes)


def _digest(key: str, file: str) -> tuple[str, str]:
    """Absolute path and SHA-256 of a file that the configuration names."""
    path = Path(file).expanduser()
    try:
        with path.open("rb") as content:
            return str(path.resolve()), hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"cannot read {key} {path}: {error.strerror}") from error


def _profile_layer(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    path = PROFILES / f"{name}.toml"
    if name not in profile_names():
        raise ConfigError(f"no profile {name!r}{nearest(name, profile_names())}; known: {', '.join(profile_names())}")
    layer = _read_toml(path)
    parent = layer.pop("extends", None)
    if parent is None:
        return layer
    if parent in (*seen, name):
        raise ConfigError(f"{path}: profiles extend each other in a circle: {' -> '.join((*seen, name, parent))}")
    return merge(_profile_layer(parent, (*seen, name)), layer)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {path}: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def _override(text: str) -> dict[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not all(key.strip().split(".")):
        raise ConfigError(f"--set {text!r}: write it as section.key=value, for example --set sft.learning_rate=1e-4")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    for part in reversed(key.strip().split(".")):
        parsed = {part: parsed}
    return parsed


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"]) or "configuration"
    if first["type"] == "extra_forbidden":
        return f"unknown configuration key {path!r}{nearest(str(first['loc'][-1]), _siblings(first['loc']))}"
    message = first["msg"].removeprefix("Value error, ")
    return f"configuration key {path!r}: {message} (got {first.get('input')!r})" if first["loc"] else message


def _siblings(location: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in location[:-1]:
        if isinstance(part, int):  # a place in a list of tables: its model was found with the list
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *get_args(annotation)]
        model = next(one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel))
    return list(model.model_fields)


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'X'?` for the known name that is most like `name`, or an empty text."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]!r}?" if match else ""
