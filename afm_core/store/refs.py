"""What names an artifact, and what a manifest says of it."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ArtifactKind(StrEnum):
    """What an artifact holds."""

    CORPUS = "corpus"
    TASKS = "tasks"
    TRAJECTORIES = "trajectories"
    MODEL = "model"
    EVALUATION = "evaluation"
    REGISTRATION = "registration"
    DIAGNOSIS = "diagnosis"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ArtifactRef(_Frozen):
    """A name for immutable content: kind, digest of the canonical content, and where its manifest lies."""

    kind: ArtifactKind
    digest: str
    uri: str


class FileEntry(_Frozen):
    """One file of an artifact: path below the artifact, size in bytes, SHA-256, rows if it is a table."""

    path: str
    size: int
    sha256: str
    rows: int | None = None


class Manifest(_Frozen):
    """The content of an artifact. Written after the data, before the key's pointer; readers go through it
    only.

    `digest` covers kind, files and schema_version alone. `sidecar` (times, host, attempt, code version) is
    undigested.
    """

    kind: ArtifactKind
    digest: str
    stage: str
    key: str
    generation: int
    epoch: int
    files: tuple[FileEntry, ...]
    sidecar_files: tuple[FileEntry, ...] = ()
    schema_version: str = "1"
    parents: dict[str, ArtifactRef] = Field(default_factory=dict)
    config: dict[str, Any] = Field(default_factory=dict)
    metrics: dict[str, float | int | str | bool | None] = Field(default_factory=dict)
    sidecar: dict[str, Any] = Field(default_factory=dict)
