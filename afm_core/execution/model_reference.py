"""What a user means by a model of the store: the champion, or a digest."""

import re

from afm_core.config import ConfigError, RunConfig
from afm_core.store import ArtifactKind, ArtifactRef, Store
from afm_core.tracking import Registry

CHAMPION = "champion"


def names_source(model: str) -> bool:
    """Whether a text names where a model comes from (a directory, s3://, a hub id), not one of the store."""
    return model != CHAMPION and re.fullmatch("(model:)?[0-9a-fA-F]{4,64}", model) is None


def find_model(store: Store, config: RunConfig, reference: str) -> ArtifactRef:
    """The champion, or the model of a digest (or of its first digits).

    Raises:
        ConfigError: no such artifact, no model, or nothing is registered as champion yet.
    """
    if reference == CHAMPION:
        champion = Registry.of(config).champion()
        if champion is None:
            raise ConfigError(
                f"no champion is registered as {config.registry.model_name!r} (a run registers a model that beats its "
                "base): run `afm run`, or give --model a digest (`afm artifacts ls --kind model`) or a directory"
            )
        return champion.ref
    found = _find(store, reference)
    if found.kind is not ArtifactKind.MODEL:
        raise ConfigError(f"{reference!r} is a {found.kind}, not a model; see `afm artifacts ls --kind model`")
    return found


def _find(store: Store, reference: str) -> ArtifactRef:
    try:
        return store.find(reference, ArtifactKind.MODEL)
    except ConfigError as error:
        if re.fullmatch("[0-9a-fA-F]*", reference.removeprefix("model:").removesuffix("/")) or "/work/" in reference:
            raise
        raise ConfigError(
            f"no model {reference!r}: give champion, a digest (`afm artifacts ls --kind model`), a model directory, or "
            "a name of `afm models ls`"
        ) from error
