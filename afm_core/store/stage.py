"""The stage contract: what a stage is given and what it returns. afm_core.execution runs it, the store
commits it.

A stage function has the signature `def stage(context: StageContext) -> StageResult`. It reads its declared
inputs and configuration sections from the context, writes files below `context.output`, and may seal
checkpoints, finished shards or scored rows with `context.seal`, which a later attempt finds again with
`context.sealed`.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from afm_core.config import Section
from afm_core.store.refs import ArtifactRef, Manifest

SectionT = TypeVar("SectionT", bound=Section)


class StageSpec(BaseModel):
    """A stage to run: its name, its resolved sections (name -> key fields), its inputs, and which generation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    config: dict[str, Any]
    """The whole resolved RunConfig as JSON values; only the stage's declared sections are visible to it and
    keyed.
    """
    inputs: dict[str, ArtifactRef] = Field(default_factory=dict)
    variant: str = ""
    """Distinguishes two uses of one stage in a run, e.g. evaluate:base and evaluate:sft. Part of the key."""
    store_uri: str
    generation: int | None = None
    """None: the newest committed generation, or the first."""


class StageInterrupted(Exception):
    """The stage was told to stop (SIGTERM), has sealed what it could, and exits."""


@dataclass(frozen=True)
class Artifact:
    """An opened artifact: its reference, its manifest, and a local directory with its files (read-only)."""

    ref: ArtifactRef
    manifest: Manifest
    path: Path


@dataclass(frozen=True)
class StageResult:
    """What a stage function returns. `rows`: table file -> row count. `metrics`: deterministic figures
    (digest-free).

    `parents` adds inputs found at run time to the manifest's. Files below `output/sidecar/` are kept but not
    digested.
    """

    metrics: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    parents: Mapping[str, ArtifactRef] = field(default_factory=dict)


class StageContext(Protocol):
    """What a stage function sees."""

    spec: StageSpec
    inputs: Mapping[str, Artifact]
    output: Path
    """Empty local directory; what lies below it at return is committed."""
    scratch: Path
    """Local directory for temporary files; gone afterwards."""
    stopping: threading.Event
    """Set on SIGTERM: seal a checkpoint and raise StageInterrupted soon."""

    def section(self, model: type[SectionT]) -> SectionT:
        """The resolved section of that type. Raises AssertionError if the stage did not declare it."""
        ...

    def seal(self, name: str, source: Path) -> None:
        """Copy a finished file or directory into the work area under `name` (slashes allowed), atomically."""
        ...

    def sealed(self, prefix: str = "") -> Mapping[str, Path]:
        """Everything sealed under names with `prefix`, by this or an earlier attempt at the same key: name ->
        local path.
        """
        ...

    def unseal(self, name: str) -> None:
        """Forget a sealed name (an old checkpoint)."""
        ...

    def progress(self, done: int, total: int, message: str = "") -> None:
        """Report progress; shown live in the terminal and the Prefect run."""
        ...

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Spool metrics for MLflow; never raises, never blocks."""
        ...
