"""The page of a diagnosis: a heat map a domain (layer x expert), the figures with their intervals, the selections.

One HTML file without scripts or outside resources. Colour says how much more (orange) or less (blue) a domain uses an
expert than all domains together; a frame marks the experts selected by contribution; every cell has its numbers as a
tooltip. Beside colour, cells used at least twice the background carry a dot, for those who see no colours.
"""

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

_CELL = 14
_MARGIN = 34
_LIMIT = 2.0
"""Colours are saturated at a lift of 2 ** 2 and 2 ** -2."""


def render(figures: Mapping[str, Any]) -> str:
    """The page of `afm_core.moe.figures.diagnosis` figures with their `selections`."""
    from jinja2 import Environment

    template = resources.files("afm_core.moe").joinpath("page.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"interval": interval, "share": share}
    maps = {name: heat_map(figures, place) for place, name in enumerate(figures["domains"])}
    single = [name for name, one in figures["figures"].items() if one["documents"] == 1]
    bars = information_bars(figures)
    return environment.from_string(template).render(figures=figures, maps=maps, bars=bars, single=single)


def heat_map(figures: Mapping[str, Any], place: int) -> str:
    """SVG of one domain: rows are mixture layers, columns experts."""
    shares: Sequence[Sequence[Sequence[float]]] = figures["shares"]
    layers, experts = figures["layers"], figures["experts"]
    chosen = _chosen(figures, figures["domains"][place])
    cells = []
    for row, layer in enumerate(layers):
        for expert in range(experts):
            own = shares[place][row][expert]
            behind = sum(one[row][expert] for one in shares) / len(shares)
            lift = own / behind if behind > 0 else 1.0
            cells.append(_cell(row, expert, layer, own, lift, expert in chosen.get(str(layer), ())))
        cells.append(f'<text x="{_MARGIN - 6}" y="{_MARGIN + row * _CELL + 11}" text-anchor="end">{layer}</text>')
    step = max(1, experts // 8)
    for expert in range(0, experts, step):
        cells.append(
            f'<text x="{_MARGIN + expert * _CELL + _CELL // 2}" y="{_MARGIN - 8}" text-anchor="middle">{expert}</text>'
        )
    width, height = _MARGIN + experts * _CELL + 4, _MARGIN + len(layers) * _CELL + 4
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="experts by layer"><text x="{_MARGIN}" y="12">expert</text>'
        f'<text x="2" y="{_MARGIN - 8}">layer</text>{"".join(cells)}</svg>'
    )


def _cell(row: int, expert: int, layer: int, own: float, lift: float, chosen: bool) -> str:
    x, y = _MARGIN + expert * _CELL, _MARGIN + row * _CELL
    frame = ' stroke="#111" stroke-width="2"' if chosen else ' stroke="#fff" stroke-width="1"'
    dot = f'<circle cx="{x + _CELL / 2}" cy="{y + _CELL / 2}" r="1.8" fill="#111"/>' if lift >= 2 else ""
    title = f"layer {layer}, expert {expert}: {own:.2%} of selections, {lift:.2f} times the background"
    shape = f'<rect x="{x + 1}" y="{y + 1}" width="{_CELL - 2}" height="{_CELL - 2}" fill="{colour(lift)}"{frame}/>'
    return f"<g><title>{title}{', selected' if chosen else ''}</title>{shape}{dot}</g>"


def colour(lift: float) -> str:
    """Blue below 1, white at 1, orange above; the scale is logarithmic."""
    strength = max(-_LIMIT, min(_LIMIT, math.log2(max(lift, 1e-6)))) / _LIMIT
    end = (217, 95, 2) if strength > 0 else (37, 99, 176)
    mixed = (round(247 + (channel - 247) * abs(strength)) for channel in end)
    return "#{:02x}{:02x}{:02x}".format(*mixed)


def information_bars(figures: Mapping[str, Any]) -> str:
    """SVG: how much a layer's choice of experts tells of the domain (0 nothing, 1 everything), with intervals."""
    rows = []
    for row, (layer, one) in enumerate(zip(figures["layers"], figures["information"], strict=True)):
        y = 8 + row * 18
        width = 320 * max(0.0, min(1.0, one["value"]))
        rows.append(f'<text x="28" y="{y + 11}" text-anchor="end">{layer}</text>')
        rows.append(f'<rect x="36" y="{y}" width="{width:.1f}" height="13" fill="#2563b0"/>')
        if one["low"] is not None:
            low, high = (36 + 320 * max(0.0, min(1.0, one[end])) for end in ("low", "high"))
            rows.append(f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 6.5}" y2="{y + 6.5}" stroke="#111"/>')
        rows.append(f'<text x="366" y="{y + 11}">{one["value"]:.3f}</text>')
    height = 16 + 18 * len(figures["layers"])
    return f'<svg viewBox="0 0 420 {height}" width="420" height="{height}" role="img">{"".join(rows)}</svg>'


def interval(figure: Mapping[str, Any], digits: int = 3) -> str:
    """Value and 95% interval, e.g. 0.412 (0.380 to 0.440)."""
    if figure["value"] is None:
        return "not enough text"
    text = f"{figure['value']:.{digits}f}"
    if figure.get("low") is None:
        return text
    return f"{text} ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"


def share(value: float) -> str:
    """A share in per cent."""
    return f"{value:.1%}"


def _chosen(figures: Mapping[str, Any], domain: str) -> Mapping[str, Sequence[int]]:
    for one in figures.get("selections", ()):
        if (one["domain"], one["score"]) == (domain, "contribution"):
            experts: Mapping[str, Sequence[int]] = one["experts"]
            return experts
    return {}
