"""The stage process: one fresh process a stage attempt, `afm stage SPEC_URI`.

Standard output carries events for the parent; whatever libraries print goes to standard error. The process dies with
its parent, seals a checkpoint on SIGTERM, and never leaves a child behind (it leads its own process group). As a Ray
job it has no parent, both outputs are one log (see afm_core.execution.job_log), it keeps its time limit itself, and it
brings its metrics to MLflow itself where the run cannot see this machine's files.
"""

import errno
import logging
import os
import platform
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec
import psutil
from pydantic import ValidationError

from afm_core.config import ConfigError, RunConfig, home
from afm_core.execution.events import Event, Failed, FailureKind, Finished, Progress, Waiting, encode
from afm_core.execution.job_log import EVENT_MARK
from afm_core.execution.lifeline import die_with_parent, end_own_group, watch_pipe
from afm_core.execution.process import PARENT_PIPE
from afm_core.execution.ray_job import ATTEMPT, REPLAY, STAGE_SECONDS, STOP_WAIT
from afm_core.execution.runner import GRACE_SECONDS
from afm_core.execution.scratch import private_scratch
from afm_core.execution.stages import key_of, stage_named
from afm_core.store import (
    Holder,
    StageInterrupted,
    StageResult,
    StageSpec,
    Store,
    StoreUnavailable,
    open_store,
    s3_errors,
    s3_file_system,
)
from afm_core.tracking import MetricSpool, Replayer

_INFRASTRUCTURE = (OSError, ConnectionError, TimeoutError, MemoryError)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REPLAY_SECONDS = 60.0
_HASTE_SECONDS = 5.0
"""For the last replay of a job's metrics; the second when it is told to stop and has a checkpoint to seal."""


class EventWriter:
    """Writes events to the real standard output, from any thread: a line each, in one write.

    With a mark (a Ray job) a line break comes first, because another process may be in the middle of a line.
    """

    def __init__(self, descriptor: int, mark: str = "") -> None:
        self._descriptor = descriptor
        self._before = f"\n{mark} " if mark else ""
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        data = f"{self._before}{encode(event)}\n".encode()
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


def main(spec_uri: str) -> int:
    """Run the stage of a spec; returns the exit code (0 committed, 1 failed, 2 configuration)."""
    write = EventWriter(os.dup(1), os.environ.pop(EVENT_MARK, ""))
    os.dup2(2, 1)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    _tie_to_parent(stopping)
    _limit_time(stopping)
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
        write(Failed(kind=classify(error), message=told(error)))
        return 1


def read_spec(uri: str) -> StageSpec:
    """The spec at a path or URI. Raises ConfigError if it cannot be read or is none."""
    try:
        return StageSpec.model_validate_json(_content(uri))
    except StoreUnavailable:
        raise
    except (OSError, ValueError, ValidationError) as error:
        raise ConfigError(f"{uri} is not a readable stage spec: {error}") from error


def _content(uri: str) -> str | bytes:
    if not uri.startswith("s3://"):
        with fsspec.open(uri, "rb") as file:
            return bytes(file.read())
    with s3_errors(uri, missing_is_fine=True):
        return bytes(s3_file_system(uri).cat_file(uri.removeprefix("s3://")))


def classify(error: Exception) -> FailureKind:
    """Whether a failure is one of infrastructure (worth a retry) or of the work itself."""
    if isinstance(error, _INFRASTRUCTURE) or type(error).__module__.partition(".")[0] == "ray":
        return FailureKind.INFRASTRUCTURE
    return FailureKind.FAILED


def told(error: Exception) -> str:
    """A failure in one line."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and (error.errno in _FULL or "No space left" in text or "File too large" in text):
        return f"the disk is full: {text}; free some space, then go on with `afm runs resume`"
    return f"{type(error).__name__}: {text}"


def _attempt(spec: StageSpec, write: EventWriter, stopping: threading.Event) -> Finished:
    started = time.time() - psutil.Process().create_time()
    stage = stage_named(spec.stage)
    config = RunConfig.model_validate(spec.config)
    store = open_store(spec.store_uri, home() / "cache")
    label = f"{spec.stage}:{spec.variant}" if spec.variant else spec.stage
    run_id = os.environ.get("AFM_RUN_ID", "manual")
    with (
        _replaying(config, stopping),
        private_scratch(home() / "scratch") as scratch,
        store.attempt(
            key=key_of(spec),
            spec=spec,
            kind=stage.kind,
            sections=tuple(stage.config_of(config)),
            scratch=scratch,
            generation=spec.generation,
            attempt_id=os.environ.get(ATTEMPT) or f"{run_id}:{label}:{os.getpid()}",
            wait=config.execution.wait_for_lease,
            stopping=stopping,
            on_wait=_once_each(lambda holder: write(Waiting(holder=str(holder)))),
            progress=lambda done, total, message: write(Progress(done=done, total=total, message=message)),
            metrics=_metrics(label, run_id),
        ) as attempt,
    ):
        if attempt.committed is not None:
            return _finished(store, attempt.committed, cached=True)
        times = [time.monotonic()]
        function = stage.load()
        times.append(time.monotonic())
        result: StageResult = function(attempt)
        times.append(time.monotonic())
        finished = _finished(store, attempt.commit(result, _environment()), cached=False)
        timings = {"start": started, "imports": times[1] - times[0], "work": times[2] - times[1]}
        return finished.model_copy(update={"timings": {name: round(value, 3) for name, value in timings.items()}})


def _metrics(label: str, run_id: str) -> Callable[[Mapping[str, float], int], None]:
    spool = MetricSpool(home() / "spool", attempt=f"{run_id}:{label}", tags={"afm.run": run_id, "afm.stage": label})

    def log(values: Mapping[str, float], step: int) -> None:
        spool.log(values, step)

    return log


@contextmanager
def _replaying(config: RunConfig, stopping: threading.Event) -> Iterator[None]:
    """Bring the metrics of this machine's spool to MLflow meanwhile, if the run asks for it (AFM_REPLAY)."""
    if not os.environ.get(REPLAY):
        yield
        return
    replayer = Replayer(home() / "spool", config.tracking)
    replayer.start()
    try:
        yield
    finally:
        report = replayer.close(timeout=_HASTE_SECONDS if stopping.is_set() else _REPLAY_SECONDS)
        if report is not None and report.error:
            logging.getLogger(__name__).warning("metrics wait in %s: %s", home() / "spool", report.error)


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


def _limit_time(stopping: threading.Event) -> None:
    """A job that nobody watches any more ends by itself: it seals what it can, and is gone after the grace time."""
    seconds = os.environ.get(STAGE_SECONDS)
    if not seconds:
        return

    grace = float(os.environ.get(STOP_WAIT) or GRACE_SECONDS)

    def end() -> None:
        stopping.set()
        last = threading.Timer(grace, os._exit, (1,))
        last.daemon = True
        last.start()

    timer = threading.Timer(float(seconds), end)
    timer.daemon = True
    timer.start()
