"""The stage process: one fresh process a stage attempt, `afm stage SPEC_URI`.

Standard output carries events for the parent; whatever libraries print goes to standard error. The process dies with
its parent, seals a checkpoint on SIGTERM, and never leaves a child behind (it leads its own process group).
"""

import logging
import os
import platform
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import fsspec
from pydantic import ValidationError

from afm_core.config import ConfigError, RunConfig, home
from afm_core.execution.events import Event, Failed, FailureKind, Finished, Progress, Waiting, encode
from afm_core.execution.lifeline import die_with_parent, end_own_group, watch_pipe
from afm_core.execution.process import GRACE_SECONDS, PARENT_PIPE
from afm_core.execution.scratch import private_scratch
from afm_core.execution.stages import key_of, stage_named
from afm_core.store import Holder, StageInterrupted, StageResult, StageSpec, Store, open_store
from afm_core.tracking import MetricSpool

_INFRASTRUCTURE = (OSError, ConnectionError, TimeoutError, MemoryError)


class EventWriter:
    """Writes events to the real standard output, from any thread."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            print(encode(event), file=self._stream, flush=True)


def main(spec_uri: str) -> int:
    """Run the stage of a spec; returns the exit code (0 committed, 1 failed, 2 configuration)."""
    write = EventWriter(os.fdopen(os.dup(1), "w", encoding="utf-8"))
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    _tie_to_parent(stopping)
    try:
        spec = read_spec(spec_uri)
        write(_attempt(spec, write, stopping))
        return 0
    except ConfigError as error:
        write(Failed(kind=FailureKind.CONFIGURATION, message=str(error)))
        return 2
    except StageInterrupted as error:
        write(Failed(kind=FailureKind.INTERRUPTED, message=str(error) or "told to stop"))
        return 1
    except Exception as error:  # noqa: BLE001 - recorded as the stage's failure, with its kind
        traceback.print_exc()
        write(Failed(kind=classify(error), message=f"{type(error).__name__}: {error}"))
        return 1


def read_spec(uri: str) -> StageSpec:
    """The spec at a path or URI. Raises ConfigError if it cannot be read or is none."""
    try:
        with fsspec.open(uri, "r", encoding="utf-8") as file:
            return StageSpec.model_validate_json(file.read())
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{uri} is not a readable stage spec: {error}") from error


def classify(error: Exception) -> FailureKind:
    """Whether a failure is one of infrastructure (worth a retry) or of the work itself."""
    if isinstance(error, _INFRASTRUCTURE) or type(error).__module__.partition(".")[0] == "ray":
        return FailureKind.INFRASTRUCTURE
    return FailureKind.FAILED


def _attempt(spec: StageSpec, write: EventWriter, stopping: threading.Event) -> Finished:
    stage = stage_named(spec.stage)
    config = RunConfig.model_validate(spec.config)
    store = open_store(spec.store_uri, home() / "cache")
    label = f"{spec.stage}:{spec.variant}" if spec.variant else spec.stage
    run_id = os.environ.get("AFM_RUN_ID", "manual")
    with (
        private_scratch(home() / "scratch") as scratch,
        store.attempt(
            key=key_of(spec),
            spec=spec,
            kind=stage.kind,
            sections=tuple(stage.config_of(config)),
            scratch=scratch,
            generation=spec.generation,
            attempt_id=f"{run_id}:{label}:{os.getpid()}",
            wait=config.execution.wait_for_lease,
            stopping=stopping,
            on_wait=_once_each(lambda holder: write(Waiting(holder=str(holder)))),
            progress=lambda done, total, message: write(Progress(done=done, total=total, message=message)),
            metrics=_metrics(label, run_id),
        ) as attempt,
    ):
        if attempt.committed is not None:
            return _finished(store, attempt.committed, cached=True)
        result: StageResult = stage.load()(attempt)
        return _finished(store, attempt.commit(result, _environment()), cached=False)


def _metrics(label: str, run_id: str) -> Callable[[Mapping[str, float], int], None]:
    spool = MetricSpool(home() / "spool", attempt=f"{run_id}:{label}", tags={"afm.run": run_id, "afm.stage": label})

    def log(values: Mapping[str, float], step: int) -> None:
        spool.log(values, step)

    return log


def _once_each(report: Callable[[Holder], None]) -> Callable[[Holder], None]:
    seen: set[str] = set()

    def on_wait(holder: Holder) -> None:
        if holder.attempt not in seen:
            seen.add(holder.attempt)
            report(holder)

    return on_wait


def _finished(store: Store, ref: Any, cached: bool) -> Finished:
    return Finished(ref=ref, cached=cached, metrics=dict(store.manifest(ref).metrics))


def _environment() -> dict[str, Any]:
    return {"platform": platform.platform(), "cpus": os.cpu_count(), "run": os.environ.get("AFM_RUN_ID", "")}


def _tie_to_parent(stopping: threading.Event) -> None:
    """Nothing to do when a person runs `afm stage` by hand."""
    if not os.environ.pop(PARENT_PIPE, ""):
        return
    die_with_parent()

    def parent_gone() -> None:
        stopping.set()
        threading.Timer(GRACE_SECONDS, end_own_group).start()

    watch_pipe(0, parent_gone)
