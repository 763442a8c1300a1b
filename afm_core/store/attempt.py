"""One attempt at one stage: lease, context of the stage function, commit.

    with store.attempt(key=key, spec=spec, kind=ArtifactKind.TASKS, sections=("tasks",), scratch=directory) as
    attempt:
        if attempt.committed is not None:          # found, or another attempt finished it while we waited
            return attempt.committed
        return attempt.commit(stage_function(attempt))

Commit order: data, manifest, pointer. The pointer's conditional create picks one winner; a late loser
discards its copy and returns the winner's reference. In a local store `output` is already the artifact's
final place, so a commit hashes and syncs but never copies. Leaving the block releases the lease, whatever
happened.
"""

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from afm_core.config import ConfigError, RunConfig
from afm_core.store.commit import build_manifest, publish, store_data
from afm_core.store.crash import crash_point
from afm_core.store.errors import LeaseHeld, StoreError
from afm_core.store.lease import Heartbeat, Holder, this_process
from afm_core.store.manifests import data_path, epoch_path
from afm_core.store.refs import ArtifactKind, ArtifactRef
from afm_core.store.seals import Seals
from afm_core.store.stage import Artifact, SectionT, StageInterrupted, StageResult, StageSpec

if TYPE_CHECKING:
    from afm_core.store.store import Store

ProgressSink = Callable[[int, int, str], None]
MetricsSink = Callable[[Mapping[str, float], int], None]


@dataclass(frozen=True)
class Sinks:
    """Where an attempt's reports go; each may be left out. `on_wait` is called at every look at a live
    holder.
    """

    progress: ProgressSink | None = None
    metrics: MetricsSink | None = None
    on_wait: Callable[[Holder], None] | None = None


@dataclass
class StageAttempt:
    """A StageContext that can commit. Built by `Store.attempt`; use it as a context manager.

    `committed` is the artifact that made this attempt unnecessary (then nothing is leased and nothing may be
    sealed or committed), or, after `commit`, its result. Entering raises LeaseHeld (with wait=False),
    StageInterrupted (told to stop while waiting), ArtifactMissing (an input is gone), ConfigError or
    StoreUnavailable.
    """

    store: "Store"
    key: str
    spec: StageSpec
    kind: ArtifactKind
    sections: tuple[str, ...]
    workspace: Path
    generation: int | None
    attempt_id: str
    wait: bool
    sinks: Sinks
    stopping: threading.Event
    committed: ArtifactRef | None = None
    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    output: Path = Path()
    scratch: Path = Path()
    holder: Holder | None = None
    _heartbeat: Heartbeat | None = None
    _seals: Seals | None = None
    _started: float = 0.0

    def __enter__(self) -> Self:
        self._acquire()
        if self.committed is not None:
            return self
        try:
            self._prepare()
        except BaseException:
            self._release("failed")
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.holder is None:
            return
        interrupted = isinstance(error, StageInterrupted | KeyboardInterrupt | SystemExit)
        outcome = "committed" if error is None else "interrupted" if interrupted else "failed"
        # A store that fails now must neither hide the stage's error nor spoil its commit: the lease dies with us.
        with suppress(OSError, StoreError, ConfigError):
            self._release(outcome if self.committed or error else "failed")

    # --- what the stage function sees

    def section(self, model: type[SectionT]) -> SectionT:
        """The resolved section of that type, validated. Raises AssertionError if the stage did not declare
        it.
        """
        names = [name for name, info in RunConfig.model_fields.items() if info.annotation is model]
        declared = [name for name in names if name in self.sections]
        assert declared, f"stage {self.spec.stage!r} reads {model.__name__}; it declares {self.sections}"
        return model.model_validate(self.spec.config.get(declared[0], {}))

    def seal(self, name: str, source: Path) -> None:
        """Copy a finished file or directory into the work area under `name` (slashes allowed), atomically."""
        self._open_seals().seal(name, source)

    def sealed(self, prefix: str = "") -> Mapping[str, Path]:
        """What this and earlier attempts at the same key and generation sealed; unsound seals are left out."""
        return self._open_seals().sealed(prefix)

    def unseal(self, name: str) -> None:
        """Forget a sealed name."""
        self._open_seals().unseal(name)

    def progress(self, done: int, total: int, message: str = "") -> None:
        """Report progress to the injected sink."""
        if self.sinks.progress is not None:
            self.sinks.progress(done, total, message)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        """Spool metrics through the injected sink."""
        if self.sinks.metrics is not None:
            self.sinks.metrics(metrics, step)

    # --- commit

    def commit(self, result: StageResult, sidecar: Mapping[str, Any] | None = None) -> ArtifactRef:
        """Commit what lies below `output` and return the winner's reference (ours, or that of a faster
        attempt).

        `sidecar` (code version, environment, peak memory) goes into the manifest, undigested.

        Raises:
            ValueError: the output is empty, or `result.rows` names a file that is not there.
        """
        assert self.holder is not None, "nothing to commit: this attempt holds no lease"
        assert self.committed is None, "committed already"
        backend, epoch = self.store.backend, epoch_path(self.key, self.holder.epoch)
        crash_point("before_data")
        entries = store_data(backend, self.holder, self.output, result.rows)
        crash_point("before_manifest")
        sidecar = {"started": self._started, **(sidecar or {})}
        manifest = build_manifest(self.holder, self.spec, self.kind, self.sections, result, entries, sidecar)
        winner = publish(self.store, manifest)
        self._stop_heartbeat()
        if winner.epoch != self.holder.epoch:
            backend.delete(epoch)
        else:  # committed: nobody resumes from here any more
            backend.delete(f"{epoch}/seals")
            backend.delete(f"{epoch}/checkpoints")
        self.committed = self.store.ref(winner)
        return self.committed

    # --- lease

    def _acquire(self) -> None:
        leases = self.store.leases()
        while True:
            if (manifest := self.store.lookup(self.key, self.generation)) is not None:
                self.committed = self.store.ref(manifest)
                return
            newest = leases.newest(self.key)
            if newest is None or leases.dead(newest):
                holder = self._candidate(newest.epoch + 1 if newest else 1)
                if leases.take(holder) and self._confirm(holder):
                    return
                continue
            if not self.wait:
                raise LeaseHeld(f"{self.spec.stage}: {newest} is at work on the same key")
            if self.sinks.on_wait is not None:
                self.sinks.on_wait(newest)
            if self.stopping.wait(self.store.timing.poll):
                raise StageInterrupted(f"told to stop while waiting for {newest}")

    def _candidate(self, epoch: int) -> Holder:
        return Holder(
            key=self.key,
            epoch=epoch,
            attempt=self.attempt_id,
            generation=max(self.generation or 0, self.store.next_generation(self.key)),
            inputs=tuple(reference.uri for reference in self.spec.inputs.values()),
            process=this_process(),
        )

    def _confirm(self, holder: Holder) -> bool:
        """The former holder may have committed between our look-up and our lease: look again, now that we
        hold it.
        """
        self.holder = holder
        if self.store.lookup(self.key, self.generation) is None:
            return True
        self._release("unneeded")
        return False

    def _prepare(self) -> None:
        assert self.holder is not None
        self._started = time.time()
        self._heartbeat = Heartbeat(self.store.backend, self.holder, self.store.timing.heartbeat)
        self._heartbeat.start()
        private = self.workspace / f"{self.spec.stage}-{uuid.uuid4().hex[:12]}"
        self.scratch = private / "scratch"
        self.output = self.store.backend.local(data_path(self.key, self.holder.epoch)) or private / "output"
        for directory in (self.scratch, self.output):
            directory.mkdir(parents=True)
        self._seals = Seals(self.store.backend, self.key, self.holder.epoch, self.holder.generation, private / "sealed")
        self.inputs = {name: self.store.open(reference) for name, reference in self.spec.inputs.items()}

    def _release(self, outcome: str) -> None:
        assert self.holder is not None
        self._stop_heartbeat()
        if self.scratch != Path():
            shutil.rmtree(self.scratch.parent, ignore_errors=True)
        if self.committed is None and self.output != Path():
            self.store.backend.delete(data_path(self.key, self.holder.epoch))
        holder, self.holder = self.holder, None
        self.store.leases().finish(holder, outcome)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop()

    def _open_seals(self) -> Seals:
        assert self._seals is not None, "this attempt holds no lease"
        return self._seals
