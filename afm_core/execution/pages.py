"""What a run shows of itself in another tool's pages, as Markdown and table rows: result, sample, failure.

Pure functions of records and views. Whatever models, tools or logs wrote is shown between fences that are longer than
any row of backticks in it, so that no content can leave its box and change the page.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from afm_core.evaluation.report import TrajectoryView
from afm_core.execution.runs import StageRecord

TAIL_LINES = 30
_ELEMENT_CHARACTERS = 400
_ELEMENTS = 14
_CHOICE = ("Demonstrations", "right", "wrong")
"""Of each of these kinds of trajectories the sample has the last one's first."""


def fenced(text: str) -> str:
    """`text` as a block of code that it cannot end."""
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text.rstrip()}\n{fence}"


def stage_rows(stages: Iterable[StageRecord]) -> list[dict[str, Any]]:
    """One row a stage: what it made, or found, and how long that took."""
    return [
        {
            "stage": stage.name,
            "cached": stage.cached,
            "seconds": round(stage.seconds, 1),
            "artifact": f"{stage.artifact.kind}:{stage.artifact.digest[:12]}",
        }
        for stage in stages
    ]


def model_rows(models: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a model: accuracy on held-out tasks with its 95% interval, as people read it."""
    rows = []
    for name, one in models.items():
        low, high = one["interval"]
        rows.append(
            {
                "model": name,
                "accuracy": "n/a" if one["accuracy"] is None else f"{one['accuracy']:.1%}",
                "95% interval": f"{low:.1%} to {high:.1%}",
                "tasks": one["n"],
                "unscored": one["n"] - one.get("scored", one["n"]),
                "protocol": str(one.get("protocol", "")).replace("_", " "),
            }
        )
    return rows


def sample_page(trajectories: Sequence[TrajectoryView]) -> str:
    """A demonstration, and a right and a wrong episode of the newest model, shortened. Empty if there are none."""
    chosen = []
    for kind in _CHOICE:
        groups = [one.group for one in trajectories if one.group.endswith(kind) or one.group.startswith(kind)]
        if groups:
            chosen.append(next(one for one in trajectories if one.group == groups[-1]))
    return "\n\n".join(_trajectory(one) for one in chosen)


def failure_page(
    *, message: str, run_id: str = "", stage: str = "", kind: str = "", log: Sequence[str] = (), log_path: str = ""
) -> str:
    """Why a run failed: one cause, where, the end of the log, and how to go on."""
    parts = [f"## The run failed{f' in stage `{stage}`' if stage else ''}", fenced(" ".join(message.split()))]
    if kind:
        parts.append(f"Kind of failure: {kind}.")
    if tail := [line for line in log if line.strip()][-TAIL_LINES:]:
        parts += [f"The end of its log{f' (`{log_path}`)' if log_path else ''}:", fenced("\n".join(tail))]
    if run_id:
        parts.append(
            f"What was committed is kept. When the cause is mended, continue with\n\n    afm runs resume {run_id}"
        )
    return "\n\n".join(parts)


def _trajectory(view: TrajectoryView) -> str:
    lines = [f"Question: {view.question}"]
    for element in view.elements[:_ELEMENTS]:
        lines.append(f"[{element.tag}] {_short(element.text)}{' (a mistake)' if element.mistake else ''}")
    if len(view.elements) > _ELEMENTS:
        lines.append(f"... {len(view.elements) - _ELEMENTS} more")
    reward = "unscored" if view.reward is None else f"{view.reward:g}"
    lines.append(f"Answer: {view.answer if view.answer is not None else 'none'}; expected: {' | '.join(view.expected)}")
    return f"### {view.group}\n\n{fenced(chr(10).join(lines))}\n\nStatus {view.status}, reward {reward}."


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _ELEMENT_CHARACTERS else f"{text[:_ELEMENT_CHARACTERS]} ..."
