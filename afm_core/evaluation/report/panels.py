"""Small line charts of equal size, to be read side by side: one quantity a panel over the same steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from afm_core.evaluation.report.charts import drawing, rule, ticks, words

WIDTH, PLOT = 500, 150
_LEFT, _TOP, _RIGHT, _BOTTOM = 62, 20, 70, 24


@dataclass(frozen=True)
class Panel:
    """One quantity: (step, value) in order of steps. `series` is the CSS class of its colour.

    intervals: (step, low, high). share: values are shares in [0, 1], shown as percentages on a whole axis.
    """

    title: str
    points: Sequence[tuple[float, float]]
    series: str = "rl"
    intervals: Sequence[tuple[float, float, float]] = ()
    share: bool = False


def draw(panel: Panel, steps: tuple[float, float], mark: float | None = None) -> Markup:
    """The panel over `steps` (first, last); `mark` is a step with a line across. Empty without a finite value."""
    points = [point for point in panel.points if math.isfinite(point[1])]
    if not points:
        return Markup("")
    low, high = (0.0, 1.0) if panel.share else _range([value for _, value in points])
    first, last = steps if steps[0] < steps[1] else (steps[0] - 0.5, steps[1] + 0.5)

    def x(step: float) -> float:
        return _LEFT + (step - first) / (last - first) * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + PLOT * (high - value) / (high - low)

    parts = []
    for tick in ticks(low, high, 4):
        parts.append(rule(_LEFT, y(tick), WIDTH - _RIGHT, y(tick), "zero" if tick == 0 and low < 0 else "grid"))
        parts.append(words(_LEFT - 8, y(tick) + 4, _label(tick, panel.share), "axis", "end"))
    for step in ticks(first, last, 6):
        if step == int(step):
            parts.append(words(x(step), _TOP + PLOT + 18, f"{step:g}", "axis", "middle"))
    if mark is not None:
        parts.append(rule(x(mark), _TOP - 8, x(mark), _TOP + PLOT, "mark"))
        left = x(mark) > WIDTH / 2
        parts.append(words(x(mark) + (-6 if left else 6), _TOP - 2, "kept", "axis", "end" if left else "start"))
    for step, bottom, top in panel.intervals:
        parts.append(rule(x(step), y(bottom), x(step), y(top), f"whisker {panel.series}"))
    path = " ".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
    parts.append(f'<polyline points="{path}" class="line {panel.series}"/>')
    if len(points) <= 40:
        parts.extend(
            f'<circle cx="{x(step):.1f}" cy="{y(value):.1f}" r="3" class="dot {panel.series}"/>'
            for step, value in points
        )
    end = points[-1]
    parts.append(words(x(end[0]) + 8, y(end[1]) + 4, _label(end[1], panel.share), "value", "start"))
    return drawing(parts, _TOP + PLOT + _BOTTOM, panel.title, WIDTH)


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From zero (or below, if a value is), with some air above."""
    low, high = min(0.0, *values), max(0.0, *values)
    air = 0.08 * (high - low) or 1.0
    return (low - air if low < 0 else low), (high + air if high > 0 or low == 0 else high)


def _label(value: float, share: bool) -> str:
    return f"{value:.0%}" if share else f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"
