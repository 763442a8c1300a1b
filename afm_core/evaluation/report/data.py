"""ReportData: everything a report shows, as plain frozen values. Rendering knows nothing of stores or runs.

Every part may be empty: the report of a failed run shows what there is and says what is missing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from afm_core.evaluation.report.learning import RlView

MEMORY_LINE_BYTES = 6 * 1024**3
"""The peak a laptop run has to stay below: 6 GiB."""


@dataclass(frozen=True)
class StageView:
    """One stage of the run. `seconds` is wall-clock time of this run (cached stages take almost none)."""

    name: str
    kind: str = ""
    digest: str = ""
    uri: str = ""
    cached: bool = False
    seconds: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    status: str = "completed"


@dataclass(frozen=True)
class RoadView:
    """Counts along the road, from documents to trained tokens. None: not known."""

    documents: int | None = None
    tasks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """split -> hops -> tasks."""
    demonstrations: int | None = None
    kept: int | None = None
    rejected: Mapping[str, int] = field(default_factory=dict)
    """reason -> trajectories."""
    tokens: int | None = None
    trained_tokens: int | None = None


@dataclass(frozen=True)
class CurveView:
    """One training curve: points (step, loss in nats per supervised token)."""

    label: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class EvaluationView:
    """One evaluated model (or `reference`): its label and the protocol entries of its summary.json."""

    label: str
    entries: tuple[Mapping[str, Any], ...]

    def entry(self, name: str, split: str) -> Mapping[str, Any] | None:
        """The entry of a protocol on a split, or None."""
        return next((one for one in self.entries if one["name"] == name and one["split"] == split), None)


@dataclass(frozen=True)
class TokenView:
    """One token: its text and whether it carries loss."""

    text: str
    trained: bool


@dataclass(frozen=True)
class ElementView:
    """One element of a trajectory: tag, who wrote it, its text without tags or escapes, its tokens."""

    tag: str
    text: str
    origin: str = ""
    mistake: bool = False
    tokens: tuple[TokenView, ...] = ()


@dataclass(frozen=True)
class TrajectoryView:
    """One trajectory to look at. `group` heads the list it stands in; `trained` says what its mask means."""

    id: str
    group: str
    question: str
    elements: tuple[ElementView, ...]
    answer: str | None = None
    expected: tuple[str, ...] = ()
    status: str = "completed"
    reward: float | None = None
    hops: int | None = None
    source: str = ""
    prompt: str = ""
    prompt_tokens: int = 0
    violations: tuple[str, ...] = ()
    trained: str = "carried loss in SFT"


@dataclass(frozen=True)
class ReportData:
    """The report of one run."""

    run_id: str
    status: str
    profile: str = ""
    started: str = ""
    champion: str = ""
    stages: tuple[StageView, ...] = ()
    road: RoadView = RoadView()
    curves: tuple[CurveView, ...] = ()
    rl: RlView | None = None
    evaluations: tuple[EvaluationView, ...] = ()
    decision: Mapping[str, Any] | None = None
    trajectories: tuple[TrajectoryView, ...] = ()
    peak_memory_bytes: int | None = None
    memory_series: tuple[tuple[float, float], ...] = ()
    """(seconds since the start, bytes)."""
    config: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    """Why the run failed, if it did."""
    notes: tuple[str, ...] = ()
    """What is missing from this report, and why."""

    def evaluation(self, label: str) -> EvaluationView | None:
        """The evaluation with that label, or None."""
        return next((one for one in self.evaluations if one.label == label), None)
