"""One run in progress: what its stages share (configuration, store, local Ray, memory sampler, metric replay).

`RunSession.execute` is the whole road of one stage seen from the parent: look the key up in the store, else start a
stage process, here or as a Ray job, and wait for its artifact. The Prefect tasks above are thin wrappers of it.
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from afm_core.config import RunConfig, home, resolved_json
from afm_core.execution.events import FailureKind, Finished, Submitted
from afm_core.execution.memory import MemorySampler
from afm_core.execution.observer import Listener, LogListener, Observer
from afm_core.execution.preflight import open_run_store
from afm_core.execution.process import run_process
from afm_core.execution.ray_head import LocalRay
from afm_core.execution.ray_job import Reports, run_job
from afm_core.execution.ray_target import ray_target
from afm_core.execution.road import RoadStage, stages_until
from afm_core.execution.runner import StageFailed, stop_all
from afm_core.execution.runs import RunDirectory, RunRecord, RunStatus, StageProgress, StageRecord, now
from afm_core.execution.scratch import sweep
from afm_core.execution.stages import key_of, stage_named
from afm_core.store import ArtifactRef, StageSpec, Store, StoreUnavailable, this_process
from afm_core.tracking import MetricSpool, Replayer

Turn = Callable[[str], AbstractContextManager[object]]
"""Of a stage's label, what is held while it runs."""


class RunSession:
    """A run's shared state. Use as a context manager: it closes what it started, however the run ends."""

    def __init__(
        self,
        config: RunConfig,
        run_id: str,
        refresh: Iterable[str] = (),
        parameters: Any = None,
        until: RoadStage = RoadStage.RL,
    ) -> None:
        self.config = config
        self.until = until
        self.stages = stages_until(until, config)
        self.home = home()
        self.refresh = frozenset(stage_named(name).name for name in refresh)
        self.store: Store = open_run_store(config)
        self.target = ray_target(config, self.store.uri)
        self.directory = RunDirectory(self.home, run_id).create()
        self.record = RunRecord(
            run_id=run_id,
            profile=config.profile,
            started=now(),
            pid=os.getpid(),
            process=this_process(),
            parameters=parameters or {},
            config=config.model_dump(mode="json"),
        )
        self.record.links.ray_dashboard = self.target.dashboard if self.target else None
        self._ray = LocalRay(config.execution, self.directory.logs / "ray.log")
        self._memory = MemorySampler()
        # Soon: a run whose stages are all cached is over in seconds, and should not wait for MLflow at its end.
        self._replayer = Replayer(self.home / "spool", config.tracking, run_id, first=1.0)
        self._slots = threading.Semaphore(config.execution.parallel_stages)
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._generations: dict[str, int] = {}
        self._closing = threading.Event()

    def __enter__(self) -> "RunSession":
        (self.directory.path / "config.json").write_text(resolved_json(self.config), encoding="utf-8")
        self.directory.save(self.record)
        self._memory.__enter__()
        self._replayer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._closing.set()
        stop_all()
        self._ray.close()
        self._memory.__exit__()
        sweep(self.home / "scratch")
        if error is not None:
            cancelled = kind is not None and not issubclass(kind, Exception)
            self.record.status = RunStatus.CANCELLED if cancelled else RunStatus.FAILED
            self.record.error = "interrupted" if cancelled else str(error) or type(error).__name__
        elif self.record.status is RunStatus.RUNNING:
            self.record.status = RunStatus.COMPLETED
        self.record.progress = {}
        self._stamp()
        self.directory.save(self.record)
        self._replayer.close()

    def execute(
        self,
        name: str,
        inputs: Mapping[str, ArtifactRef],
        variant: str = "",
        *,
        turn: Turn = nullcontext,
        on_event: Listener = lambda stage, event: None,
        on_log: LogListener = lambda stage, line: None,
    ) -> StageRecord:
        """Run one stage, or return its committed artifact. Raises ConfigError or StageFailed.

        A stage that has to run waits for a slot of this run, and then in `turn` for what bounds all runs.
        """
        label = f"{name}:{variant}" if variant else name
        spec = self._spec(name, inputs, variant)
        self._refuse_if_closing(label)
        started = time.monotonic()
        key = key_of(spec)
        found = self.store.lookup(key, self._generation(label, key))
        if found is not None:
            record = StageRecord(
                name=label,
                cached=True,
                seconds=round(time.monotonic() - started, 3),
                artifact=self.store.ref(found),
                metrics=dict(found.metrics),
                key=key,
                generation=found.generation,
            )
        else:
            with self._slots, turn(label):
                self._refuse_if_closing(label)
                queued = round(time.monotonic() - started, 3)
                record = self._start(label, spec, key, on_event, on_log).model_copy(update={"queued": queued})
        self._add(record, spec)
        return record

    def _refuse_if_closing(self, label: str) -> None:
        """A run that is being stopped starts nothing more, retries included."""
        if self._closing.is_set():
            raise StageFailed(f"{label}: the run is being stopped", FailureKind.INTERRUPTED)

    def finish(self, **fields: Any) -> RunRecord:
        """Fill the end of the record (models, champion, report)."""
        for name, value in fields.items():
            setattr(self.record, name, value)
        self._stamp()
        self.directory.save(self.record)
        return self.record

    def _spec(self, name: str, inputs: Mapping[str, ArtifactRef], variant: str) -> StageSpec:
        return StageSpec(
            stage=name,
            config=self.config.model_dump(mode="json"),
            inputs=dict(inputs),
            variant=variant,
            store_uri=self.store.uri,
        )

    def _generation(self, label: str, key: str) -> int | None:
        """The generation to look for: a refreshed stage asks for a new one, once a run."""
        if label.partition(":")[0] not in self.refresh:
            return None
        with self._lock:
            if key not in self._generations:
                self._generations[key] = self.store.next_generation(key)
            return self._generations[key]

    def _start(self, label: str, spec: StageSpec, key: str, on_event: Listener, on_log: LogListener) -> StageRecord:
        generation = self._generations.get(key)
        spec = spec.model_copy(update={"generation": generation})
        started = time.monotonic()
        log_path = self.directory.log_of(label)
        observer = Observer(label, on_event, on_log, self._note_progress)
        try:
            finished = self._run(label, spec, log_path, observer)
        except StageFailed as error:
            raise StageFailed(f"stage {label}: {error}", error.kind, label) from error
        finally:
            self._note_progress(label, None)
        manifest = self.store.manifest(finished.ref)
        return StageRecord(
            name=label,
            cached=False,
            seconds=round(time.monotonic() - started, 3),
            artifact=finished.ref,
            metrics=dict(finished.metrics),
            key=key,
            generation=manifest.generation,
            timings=dict(finished.timings),
        )

    def _run(self, label: str, spec: StageSpec, log_path: Path, observer: Observer) -> Finished:
        """The stage on the configured runner: the one place that chooses."""
        spec_path = self.directory.specs / f"{label.replace(':', '-')}.json"
        spec_path.write_text(spec.model_dump_json(indent=2), encoding="utf-8")
        limit = self.config.execution.stage_timeout_seconds
        if self.target is None:
            return run_process(
                spec_path,
                environment=self._environment(spec),
                log_path=log_path,
                timeout_seconds=limit,
                on_event=observer.event,
                on_log=observer.log,
            )
        return run_job(
            spec,
            target=self.target,
            store=self.store,
            run_id=self.record.run_id,
            label=label,
            environment={"AFM_RUN_ID": self.record.run_id, **self.target.environment(self.config, self.home)},
            timeout_seconds=limit,
            reports=Reports(log_path, observer.event, observer.log, lambda job: self._note_job(label, job, observer)),
        )

    def _note_job(self, label: str, job: str, observer: Observer) -> None:
        """Record a job before anything else, so that `afm runs cancel` finds it; refused when the run is closing."""
        with self._lock:
            self.record.links.ray_jobs[label] = job
            self.directory.save(self.record)
        assert self.target is not None
        observer.event(Submitted(job=job, url=self.target.job_url(job)))
        self._refuse_if_closing(label)

    def _note_progress(self, label: str, progress: StageProgress | None) -> None:
        with self._lock:
            if progress is not None:
                self.record.progress[label] = progress
            elif self.record.progress.pop(label, None) is None:
                return
            self.directory.save(self.record)

    def _environment(self, spec: StageSpec) -> dict[str, str]:
        """A local child's environment. Secrets pass through it, never through the spec."""
        environment = dict(os.environ)
        environment["AFM_RUN_ID"] = self.record.run_id
        environment["AFM_HOME"] = str(self.home)
        if stage_named(spec.stage).uses_ray(self.config):
            environment.update(self._ray.environment())
        return environment

    def _add(self, record: StageRecord, spec: StageSpec) -> None:
        with self._lock:
            self.record.stages.append(record)
            self._stamp()
            self.directory.save(self.record)
        self._track(record, spec)

    def _track(self, record: StageRecord, spec: StageSpec) -> None:
        """Tell MLflow what the stage was given and made; the metrics of its steps are already in the same spool."""
        spool = MetricSpool(
            self.home / "spool",
            attempt=f"{self.record.run_id}:{record.name}",
            tags={"afm.run": self.record.run_id, "afm.stage": record.name, "afm.cached": str(record.cached).lower()},
        )
        figures = {k: v for k, v in record.metrics.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        spool.log_params(stage_named(spec.stage).config_of(self.config))
        spool.log_inputs(spec.inputs)
        spool.log_artifacts({spec.stage: record.artifact})
        spool.log({**figures, "seconds": record.seconds})
        spool.end()

    def _stamp(self) -> None:
        self.record.ended = now()
        self.record.seconds = round(time.monotonic() - self._started, 1)
        self.record.peak_memory_bytes = self._memory.peak_bytes
        self.record.memory_series = list(self._memory.series)


def is_retryable(error: BaseException) -> bool:
    """Whether a retry may help: infrastructure, a died process or a time-out; never the user's mistake."""
    if isinstance(error, StoreUnavailable):
        return True
    return isinstance(error, StageFailed) and error.kind in {
        FailureKind.INFRASTRUCTURE,
        FailureKind.DIED,
        FailureKind.TIMEOUT,
    }
