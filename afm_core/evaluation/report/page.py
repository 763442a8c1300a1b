"""ReportData to one self-contained HTML file: no request leaves the page, no text of the run can become
markup.

The template autoescapes everything; only the charts (afm_core.evaluation.report.charts) and our own CSS and
JavaScript are marked safe. A content security policy forbids whatever would still want to load.
"""

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from afm_core.data import Status, Tag
from afm_core.evaluation.report import charts, learning
from afm_core.evaluation.report.data import MEMORY_LINE_BYTES, EvaluationView, ReportData, RoadView

TEMPLATES = Path(__file__).parent / "templates"

PROTOCOL_WORDS = {
    "agent": "as an agent",
    "zero_shot": "zero-shot",
    "few_shot": "few-shot",
    "closed_book": "closed book",
    "always_search": "always search",
    "teacher": "teacher (ceiling)",
}
_STATUS_ORDER = [status.value for status in Status]
_TAG_ORDER = [*(tag.value for tag in Tag), "text"]


def render(data: ReportData) -> str:
    """The whole report as one HTML text."""
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            data=data,
            headline=headline(data),
            css=_asset("report.css"),
            script=_asset("report.js"),
            accuracy=accuracy_chart(data.evaluations),
            hops=hops_chart(data.evaluations),
            template=template_chart(data.evaluations),
            curves=_curves_chart(data),
            rl=learning.section(data.rl),
            memory=_memory_chart(data),
            steps=_road_steps(data.road),
            road=_road_bars(data.road),
            table=_protocol_rows(data.evaluations),
            statuses=_STATUS_ORDER,
            groups=_groups(data),
            tags=[tag for tag in _TAG_ORDER if tag in {e.tag for t in data.trajectories for e in t.elements}],
            hop_columns=_hop_columns(data.road),
            memory_line=MEMORY_LINE_BYTES,
            config=json.dumps(data.config, indent=2, sort_keys=True) if data.config else "",
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=_percent, digits=_digits, seconds=_seconds, gibibytes=_gibibytes, metric=_metric)
    return environment


def write_report(data: ReportData, path: Path) -> Path:
    """Write the report, atomically; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(render(data), encoding="utf-8")
    temporary.replace(path)
    return path


def headline(data: ReportData) -> str:
    """The run's result in one sentence."""
    trained = [one for one in data.evaluations if one.entry("agent", "test") and one.label != "base"]
    if not trained:
        return learning.headline(data.rl) or "No trained model was evaluated in this run."
    best = max(trained, key=lambda one: _accuracy(one.entry("agent", "test")))
    entry = best.entry("agent", "test") or {}
    if entry.get("accuracy") is None:
        return f"None of the answers of the {best.label.upper()} model could be scored."
    text = f"The {best.label.upper()} model solves {entry['accuracy']:.1%} of {entry['scored']} held-out tasks"
    other = next((one for one in trained if one is not best and one.label in {"sft", "rl"}), None)
    if other is not None:
        text += f"; the {other.label.upper()} model {_percent((other.entry('agent', 'test') or {}).get('accuracy'))}"
    base = data.evaluation("base")
    chances = [one for one in base.entries if one["name"] in {"zero_shot", "few_shot"}] if base else []
    if chances:
        chance = max(chances, key=_accuracy)
        words = PROTOCOL_WORDS[chance["name"]]
        text += f"; the base model, {words}, {_percent(chance['accuracy'])} of {chance['scored']}"
    return text + "."


def series_of(label: str) -> str:
    """The CSS class of a model's colour."""
    return label if label in {"base", "sft", "rl", "reference", "champion"} else "other"


def accuracy_chart(evaluations: Sequence[EvaluationView]) -> Markup:
    """Every protocol on the test split, then on the gate split: a dot with its Wilson interval."""
    measures = [
        _measure(f"{_who(one)}{_protocol(entry['name'])}{split_words}", entry, series_of(one.label))
        for split, split_words in (("test", ""), ("gate", " · gate"))
        for one in evaluations
        for entry in one.entries
        if entry["split"] == split
    ]
    return (
        charts.dot_and_whisker(measures, "Accuracy by protocol with 95% Wilson intervals") if measures else Markup("")
    )


def hops_chart(evaluations: Sequence[EvaluationView]) -> Markup:
    """Accuracy by hops on the test split: the base's best chance beside every trained model."""
    chosen = _agents(evaluations)
    hops = sorted({hop for _, entry in chosen for hop in entry.get("by_hops", {})}, key=int)
    groups = [
        (
            f"{hop} hop{'s' if hop != '1' else ''}",
            [
                _measure(label, entry["by_hops"][hop], series_of(label), short=True)
                for label, entry in chosen
                if hop in entry.get("by_hops", {})
            ],
        )
        for hop in hops
    ]
    return charts.grouped_bars(groups, "Accuracy by number of hops") if groups else Markup("")


def template_chart(evaluations: Sequence[EvaluationView]) -> Markup:
    """In and out of template, guessable and open answers, for every trained model on the test split."""
    measures: list[charts.Measure] = []
    for label, entry in _agents(evaluations):
        if label == "base":
            continue
        parts = (
            ("in template", entry.get("in_template")),
            ("out of template", entry.get("out_of_template")),
            ("open answers", entry.get("by_answer", {}).get("open")),
            ("guessable answers", entry.get("by_answer", {}).get("guessable")),
        )
        measures.extend(
            _measure(f"{label.upper()} · {name}", part, series_of(label)) for name, part in parts if part and part["n"]
        )
    return charts.dot_and_whisker(measures, "Accuracy in and out of training templates") if measures else Markup("")


def _agents(evaluations: Sequence[EvaluationView]) -> list[tuple[str, Mapping[str, Any]]]:
    chosen = []
    for one in evaluations:
        names = ("few_shot", "zero_shot") if one.label == "base" else ("agent",)
        entries = [entry for name in names if (entry := one.entry(name, "test")) is not None]
        if entries:
            chosen.append((one.label, max(entries, key=_accuracy)))
    return chosen


def _measure(label: str, entry: Mapping[str, Any], series: str, short: bool = False) -> charts.Measure:
    low, high = entry["interval"]
    note = f"n={entry['scored']}" if short else f"{entry['correct']}/{entry['scored']}"
    return charts.Measure(label, entry["accuracy"], low, high, series, note)


def _curves_chart(data: ReportData) -> Markup:
    curves = [(series_of(curve.label), curve.points) for curve in data.curves if curve.points]
    return charts.line_chart(curves, "Training loss by step", "optimiser step", "loss (nats per trained token)")


def _memory_chart(data: ReportData) -> Markup:
    series = [(seconds, size / 1024**3) for seconds, size in data.memory_series]
    limit = (MEMORY_LINE_BYTES / 1024**3, "6 GiB")
    return charts.line_chart([("memory", series)], "Memory of the run", "seconds", "GiB", limit)


def _road_steps(road: RoadView) -> list[tuple[int, str]]:
    """The figures of the road that are known, in order."""
    tasks = sum(sum(hops.values()) for hops in road.tasks.values()) if road.tasks else None
    steps = (
        (road.documents, "documents"),
        (tasks, "tasks"),
        (road.demonstrations, "demonstrations"),
        (road.kept, "kept"),
        (road.tokens, "tokens in training"),
        (road.trained_tokens, "of them trained"),
    )
    return [(value, words) for value, words in steps if value is not None]


def _road_bars(road: RoadView) -> list[tuple[str, int, float, str]]:
    """Curation as bars: (label, count, share of the demonstrations, CSS class)."""
    total = road.demonstrations or (road.kept or 0) + sum(road.rejected.values())
    if not total:
        return []
    bars = [("kept", road.kept, road.kept / total, "kept")] if road.kept is not None else []
    worst = sorted(road.rejected.items(), key=lambda item: (-item[1], item[0]))
    return bars + [(reason.replace("_", " "), count, count / total, "rejected") for reason, count in worst if count]


def _protocol_rows(evaluations: Sequence[EvaluationView]) -> list[dict[str, Any]]:
    rows = []
    for one in evaluations:
        for entry in one.entries:
            parts = [
                charts.Part(status, entry["status"][status], f"status-{status}")
                for status in _STATUS_ORDER
                if entry.get("status", {}).get(status)
            ]
            name = f"{_who(one)}{_protocol(entry['name'])}"
            bar = charts.stacked_bar(parts, f"How episodes ended: {name}, {entry['split']}")
            rows.append({"name": name, "series": series_of(one.label), "entry": entry, "bar": bar})
    return rows


def _groups(data: ReportData) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, trajectory in enumerate(data.trajectories):
        groups.setdefault(trajectory.group, []).append(index)
    return groups


def _hop_columns(road: RoadView) -> list[str]:
    return sorted({hop for hops in road.tasks.values() for hop in hops}, key=int)


def _who(evaluation: EvaluationView) -> str:
    return "" if evaluation.label == "reference" else f"{evaluation.label.upper()} · "


def _protocol(name: str) -> str:
    return PROTOCOL_WORDS.get(name, name)


def _accuracy(entry: Mapping[str, Any] | None) -> float:
    value = entry["accuracy"] if entry else None
    return -1.0 if value is None else float(value)


def _asset(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _digits(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,}"


def _seconds(value: float | None) -> str:
    if value is None:
        return ""
    if value < 90:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{int(value // 60)} min {int(value % 60):02d} s"


def _gibibytes(value: float | None) -> str:
    return "n/a" if value is None else f"{value / 1024**3:.2f} GiB"


def _metric(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
