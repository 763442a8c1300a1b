"""From a run's record and the store to ReportData. Whatever cannot be read is noted, never fatal.

`record` is the JSON of `afm run` plus config, started, peak_memory_bytes and memory_series (see
afm_core.execution.RunRecord); the record of a failed or running run works too.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from afm_core.data import AgentTask, tasks_from_table
from afm_core.evaluation.report.data import (
    CurveView,
    EvaluationView,
    ReportData,
    RoadView,
    StageView,
    TrajectoryView,
)
from afm_core.evaluation.report.learning import RlView
from afm_core.evaluation.report.samples import Sampler
from afm_core.evaluation.results import load_summary
from afm_core.evaluation.rl_results import ROLLOUTS, load_rl
from afm_core.store import Artifact, ArtifactRef, Store, read_table

T = TypeVar("T")
MODEL_STAGES = ("base", "sft", "rl")
TEACHING_STAGES = ("teach", "rollout")
LOSSES = "losses.json"
"""The file of a trained model with a list of its optimiser steps (see afm_core.training.stages)."""


@dataclass
class _Run:
    """The record, the artifacts opened so far, and what could not be read."""

    record: Mapping[str, Any]
    store: Store
    notes: list[str] = field(default_factory=list)
    opened: dict[str, Artifact | None] = field(default_factory=dict)

    def stage(self, name: str) -> Artifact | None:
        """The artifact of the stage with that name, or None (noted if it is gone)."""
        return next((self.open(one) for one in self.record.get("stages", ()) if one["name"] == name), None)

    def parent(self, name: str, role: str) -> Artifact | None:
        """An input of a stage that this run did not make itself (`afm rl`), or None."""
        artifact = self.stage(name)
        parent = artifact.manifest.parents.get(role) if artifact else None
        return self.store.open(parent) if parent is not None else None

    def open(self, stage: Mapping[str, Any]) -> Artifact | None:
        """The artifact of a stage record."""
        digest = stage["artifact"]["digest"]
        if digest not in self.opened:
            reference = ArtifactRef.model_validate(stage["artifact"])
            self.opened[digest] = self.part(f"the artifact of {stage['name']}", lambda: self.store.open(reference))
        return self.opened[digest]

    def part(self, what: str, read: Callable[[], T]) -> T | None:
        """Read one part; a failure becomes a note of the report."""
        try:
            return read()
        except Exception as error:  # noqa: BLE001 - the report shows it; a broken part must not cost the others
            reason = " ".join(str(error).split()) or type(error).__name__
            self.notes.append(f"{what}: {reason}")
            return None


def collect(record: Mapping[str, Any], store: Store) -> ReportData:
    """Everything the report of a run can show. Never raises for a missing or broken part: it notes it."""
    run = _Run(record, store)
    tasks = run.part("tasks", lambda: _tasks(run)) or {}
    evaluated = run.part("evaluations", lambda: _evaluations(run)) or []
    champion = record.get("champion")
    return ReportData(
        run_id=str(record.get("run_id", "")),
        status=str(record.get("status", "unknown")),
        profile=str(record.get("profile") or (record.get("config") or {}).get("profile", "")),
        started=str(record.get("started") or ""),
        champion=str((champion.get("champion") if isinstance(champion, Mapping) else champion) or ""),
        stages=tuple(_stage(one) for one in record.get("stages", ())),
        road=run.part("counts", lambda: _road(run, tasks)) or RoadView(),
        curves=tuple(run.part("training curves", lambda: _curves(run)) or ()),
        rl=run.part("reinforcement learning", lambda: _rl(run)),
        evaluations=tuple(view for view, _ in evaluated),
        decision=run.part("the gate's decision", lambda: _decision(run)),
        trajectories=_trajectories(run, tasks, evaluated),
        peak_memory_bytes=record.get("peak_memory_bytes") or None,
        memory_series=tuple((float(time), float(size)) for time, size in record.get("memory_series") or ()),
        config=record.get("config") or {},
        error=str(record.get("error") or ""),
        notes=tuple(run.notes),
    )


def evaluated_models(record: Mapping[str, Any], store: Store) -> dict[str, dict[str, Any]]:
    """label -> summary.json of every evaluation of a run, labelled as in the report (see `models_summary`)."""
    run = _Run(record, store)
    return {view.label: {"protocols": list(view.entries)} for view, _ in _evaluations(run)}


def _stage(stage: Mapping[str, Any]) -> StageView:
    artifact = stage.get("artifact") or {}
    return StageView(
        name=stage["name"],
        kind=str(artifact.get("kind", "")),
        digest=str(artifact.get("digest", "")),
        uri=str(artifact.get("uri", "")),
        cached=bool(stage.get("cached")),
        seconds=stage.get("seconds"),
        metrics=stage.get("metrics") or {},
        status=str(stage.get("status") or "completed"),
    )


def _tasks(run: _Run) -> dict[str, AgentTask]:
    artifact = run.stage("pool") or run.stage("tasks") or run.parent("rl", "tasks")
    if artifact is None:
        return {}
    return {task.id: task for task in tasks_from_table(read_table(artifact.path / "tasks.parquet"))}


def _evaluations(run: _Run) -> list[tuple[EvaluationView, Artifact]]:
    """Evaluations, labelled by the stage that made their model: one trained elsewhere is the champion."""
    stages = run.record.get("stages", ())
    labels = {one["artifact"]["digest"]: one["name"] for one in stages if one["name"] in MODEL_STAGES}
    found: dict[str, tuple[EvaluationView, Artifact]] = {}
    for stage in stages:
        if stage["name"].partition(":")[0] != "evaluate" or (artifact := run.open(stage)) is None:
            continue
        model = artifact.manifest.parents.get("model")
        label = "reference" if model is None else labels.get(model.digest, "champion")
        if label not in found:
            found[label] = EvaluationView(label, tuple(load_summary(artifact.path)["protocols"])), artifact
    order = ("reference", "base", "champion", "sft", "rl")
    return [found[label] for label in order if label in found]


def _decision(run: _Run) -> Mapping[str, Any] | None:
    artifact = run.stage("register")
    if artifact is None:
        return None
    decision: Mapping[str, Any] = json.loads((artifact.path / "decision.json").read_text(encoding="utf-8"))
    return decision


def _road(run: _Run, tasks: Mapping[str, AgentTask]) -> RoadView:
    splits: dict[str, Counter[str]] = {}
    for task in tasks.values():
        splits.setdefault(str(task.split), Counter())[str(task.difficulty.hops)] += 1
    order = ("train", "dev", "gate", "test")
    names = [one["name"] for one in run.record.get("stages", ())]
    teaching = [name for name in names if name.partition(":")[0] in TEACHING_STAGES]
    taught = [_rows(run.stage(name), "trajectories.parquet") for name in teaching]
    curated = run.stage("curate")
    counts = _json(curated.path / "counts.json") if curated else {}
    kept = _integer(counts, "kept")
    model = run.stage("sft")
    trained = model.manifest.metrics if model else {}
    return RoadView(
        documents=_rows(run.stage("corpus"), "documents.parquet"),
        tasks={split: dict(splits[split]) for split in order if split in splits},
        demonstrations=sum(count or 0 for count in taught) if taught else None,
        kept=kept if kept is not None else _rows(curated, "trajectories.parquet"),
        rejected=_rejected(curated, counts),
        tokens=_integer(trained, "tokens"),
        trained_tokens=_integer(trained, "supervised_tokens"),
    )


def _rows(artifact: Artifact | None, name: str) -> int | None:
    if artifact is None:
        return None
    counted = {file.path: file.rows for file in artifact.manifest.files}
    return counted[name] if counted.get(name) is not None else read_table(artifact.path / name).num_rows


def _rejected(curated: Artifact | None, counts: Mapping[str, Any]) -> dict[str, int]:
    """Reasons of curation: from counts.json, else counted in rejected.parquet."""
    if isinstance(counts.get("rejected"), Mapping):
        return {str(reason): int(count) for reason, count in counts["rejected"].items()}
    path = curated.path / "rejected.parquet" if curated else None
    if path is None or not path.exists():
        return {}
    table = read_table(path)
    return dict(Counter(table["reason"].to_pylist())) if "reason" in table.column_names else {}


def _curves(run: _Run) -> list[CurveView]:
    curves = []
    for name in MODEL_STAGES[1:]:
        artifact = run.stage(name)
        points = _loss(artifact.path) if artifact else ()
        if points:
            curves.append(CurveView(name, points))
    return curves


def _rl(run: _Run) -> RlView | None:
    artifact = run.stage("rl")
    record = load_rl(artifact.path) if artifact else None
    if record is None:
        return None
    selected = run.stage("select")
    path = selected.path / "selection.parquet" if selected else None
    reasons = read_table(path)["reason"].to_pylist() if path and path.exists() else []
    return RlView(record, dict(Counter(reason or "kept" for reason in reasons)))


def _loss(directory: Path) -> tuple[tuple[float, float], ...]:
    path = directory / LOSSES
    steps = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return tuple((float(one["step"]), float(one["loss"])) for one in steps if "step" in one and "loss" in one)


def _trajectories(
    run: _Run, tasks: Mapping[str, AgentTask], evaluated: list[tuple[EvaluationView, Artifact]]
) -> tuple[TrajectoryView, ...]:
    models = {name: run.stage(name) for name in MODEL_STAGES}
    model = next((models[name] for name in reversed(MODEL_STAGES) if models[name] is not None), None)
    sampler = Sampler(tasks, run.record.get("config") or {}, model.path if model else None)
    views: list[TrajectoryView] = []
    curated = run.stage("curate") or next(filter(None, map(run.stage, TEACHING_STAGES)), None)
    if curated is not None:
        views += run.part("demonstrations", lambda: sampler.demonstrations(curated.path)) or []
    for view, artifact in evaluated:
        if view.label != "reference":
            sample = run.part(f"episodes of {view.label}", lambda a=artifact, v=view: sampler.episodes(a.path, v.label))  # type: ignore[misc]
            views += sample or []
    trained = run.stage("rl")
    if trained is not None:
        views += run.part("rollouts", lambda: sampler.rollouts(trained.path / ROLLOUTS)) or []
    run.notes.extend(sampler.notes)
    return tuple(views)


def _integer(values: Mapping[str, Any], name: str) -> int | None:
    return int(values[name]) if isinstance(values.get(name), int | float) else None


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
