"""Charts as inline SVG: a dot with its interval, grouped bars, a line with axes, a stacked bar.

No library: the report must open anywhere, follow the reader's light or dark theme through CSS variables, and
stay readable as text. Every chart has a title element for screen readers; colours come from classes of
report.css, and no figure is told by colour alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

WIDTH = 1040
"""Width of the drawing, close to that of the page's column, so that text keeps the page's size."""


@dataclass(frozen=True)
class Measure:
    """A share in [0, 1] with its interval. `series` is the CSS class of its colour; `note` stands beside the value."""

    label: str
    value: float | None
    low: float
    high: float
    series: str
    note: str = ""


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar: label, count, CSS class."""

    label: str
    count: int
    series: str


def dot_and_whisker(measures: Sequence[Measure], title: str, label_width: int = 230) -> Markup:
    """One row a measure: a dot at the value, a line over its interval, the figure in words at the right."""
    row, top, right = 29, 8, 170
    height = top + row * len(measures) + 30
    span = WIDTH - label_width - right

    def x(share: float) -> float:
        return label_width + share * span

    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(rule(x(tick), top, x(tick), height - 28, "grid"))
        parts.append(words(x(tick), height - 10, f"{tick:.0%}", "axis", "middle"))
    for number, one in enumerate(measures):
        y = top + row * number + row / 2
        parts.append(words(label_width - 14, y + 4, one.label, "label", "end"))
        if one.value is None:
            parts.append(words(x(0) + 6, y + 4, "nothing scored", "axis", "start"))
            continue
        parts.append(rule(x(one.low), y, x(one.high), y, f"whisker {one.series}"))
        parts.extend(rule(x(end), y - 5, x(end), y + 5, f"whisker {one.series}") for end in (one.low, one.high))
        parts.append(f'<circle cx="{x(one.value):.1f}" cy="{y:.1f}" r="5.5" class="dot {escape(one.series)}"/>')
        parts.append(words(WIDTH - right + 18, y + 4, f"{one.value:.1%}", "value", "start"))
        parts.append(words(WIDTH, y + 4, one.note, "axis", "end"))
    return drawing(parts, height, title)


def grouped_bars(groups: Sequence[tuple[str, Sequence[Measure]]], title: str) -> Markup:
    """Vertical bars in groups, each with its interval; heights are shares from 0 to 100%."""
    left, top, plot = 46, 22, 240
    height = top + plot + 44
    slot = (WIDTH - left) / max(1, len(groups))
    widest = max((len(bars) for _, bars in groups), default=1)
    bar = min(64.0, slot * 0.72 / max(1, widest))
    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        y = top + plot * (1 - tick)
        parts.append(rule(left, y, WIDTH, y, "grid"))
        parts.append(words(left - 8, y + 4, f"{tick:.0%}", "axis", "end"))
    for number, (label, bars) in enumerate(groups):
        centre = left + slot * (number + 0.5)
        parts.append(words(centre, height - 20, label, "label", "middle"))
        start = centre - bar * len(bars) / 2
        for index, one in enumerate(bars):
            parts.extend(_bar(one, start + bar * index, bar, top, plot, height))
    return drawing(parts, height, title)


def line_chart(
    curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], title: str, x_label: str, y_label: str,
    limit: tuple[float, str] | None = None,
) -> Markup:  # fmt: skip
    """Lines over a numeric x axis, y from zero. `limit`: a labelled horizontal line (value, text)."""
    left, top, plot, right = 52, 28, 250, 14
    height = top + plot + 46
    points = [point for _, line in curves for point in line if all(map(math.isfinite, point))]
    if not points:
        return Markup("")
    x_low, x_high = min(p[0] for p in points), max(p[0] for p in points)
    y_high = max([p[1] for p in points] + ([limit[0]] if limit else [])) * 1.06 or 1.0
    span = (x_high - x_low) or 1.0

    def place(point: tuple[float, float]) -> tuple[float, float]:
        return left + (point[0] - x_low) / span * (WIDTH - left - right), top + plot * (1 - point[1] / y_high)

    parts = []
    for tick in ticks(0, y_high, 5):
        y = place((x_low, tick))[1]
        parts.append(rule(left, y, WIDTH - right, y, "grid"))
        parts.append(words(left - 8, y + 4, f"{tick:g}", "axis", "end"))
    for tick in ticks(x_low, x_high, 8):
        parts.append(words(place((tick, 0))[0], top + plot + 18, f"{tick:g}", "axis", "middle"))
    parts.append(words(left, top - 12, y_label, "axis", "start"))
    parts.append(words(WIDTH - right, height - 8, x_label, "axis", "end"))
    if limit:
        y = place((x_low, limit[0]))[1]
        parts.append(rule(left, y, WIDTH - right, y, "limit"))
        parts.append(words(WIDTH - right, y - 6, limit[1], "axis", "end"))
    for series, line in curves:
        placed = [place(point) for point in line if all(map(math.isfinite, point))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" class="line {escape(series)}"/>')
        if len(placed) <= 60:
            parts.extend(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" class="dot {escape(series)}"/>' for x, y in placed)
    return drawing(parts, height, title)


def stacked_bar(parts: Sequence[Part], title: str) -> Markup:
    """One horizontal bar of 100%, a piece a part, counts written where they fit (plain boxes, no SVG: it
    lives in table cells of any width)."""
    total = sum(part.count for part in parts) or 1
    pieces = []
    for part in parts:
        share = part.count / total
        text = str(part.count) if share > 0.11 else ""
        name = escape(f"{part.label}: {part.count} ({share:.1%})")
        pieces.append(f'<i class="{escape(part.series)}" style="flex-grow:{part.count}" title="{name}">{text}</i>')
    words = ", ".join(f"{part.label} {part.count}" for part in parts)
    label = escape(f"{title}: {words}")
    return Markup(f'<div class="stack" role="img" aria-label="{label}">{"".join(pieces)}</div>')


def _bar(one: Measure, x: float, width: float, top: float, plot: float, height: float) -> list[str]:
    middle = x + width / 2
    parts = [words(middle, height - 4, one.note, "axis", "middle")]
    if one.value is None:
        return [*parts, words(middle, top + plot - 6, "n/a", "axis", "middle")]
    y = top + plot * (1 - one.value)
    high, low = top + plot * (1 - one.high), top + plot * (1 - one.low)
    parts.append(
        f'<rect x="{x + 2:.1f}" y="{y:.1f}" width="{width - 4:.1f}" height="{max(1.5, top + plot - y):.1f}" rx="2" '
        f'class="bar {escape(one.series)}"><title>{escape(one.label)}: {one.value:.1%}</title></rect>'
    )
    parts.append(rule(middle, high, middle, low, "bar-whisker"))
    parts.extend(rule(middle - 4, end, middle + 4, end, "bar-whisker") for end in (high, low))
    parts.append(words(middle, high - 6, f"{one.value:.0%}", "value", "middle"))
    return parts


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers inside [low, high], about `count` of them."""
    raw = (high - low) / count or 1.0
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw)
    first, digits = math.ceil(low / step), 10 - math.floor(math.log10(step))
    return [round(index * step, digits) for index in range(first, math.floor(high / step) + 1)]


def rule(x1: float, y1: float, x2: float, y2: float, series: str) -> str:
    """A straight line of a CSS class."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{escape(series)}"/>'


def words(x: float, y: float, content: str, series: str, anchor: str) -> str:
    """Text of a CSS class; anchor: start, middle or end."""
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{escape(series)}" text-anchor="{anchor}">{escape(content)}</text>'


def drawing(parts: Sequence[str], height: float, title: str, width: float = WIDTH) -> Markup:
    """The whole SVG. Whatever `parts` interpolate went through html.escape or is a number."""
    return Markup(
        f'<svg class="chart" viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
