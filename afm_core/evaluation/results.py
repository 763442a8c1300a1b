"""The end of a run for people and scripts: the summaries of its models, and a table for the terminal."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afm_core.evaluation.metrics import find_entry
from afm_core.evaluation.protocols import Protocol

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_NAMES = {"policy": "sft"}
"""How a stage variant is called among the models, when it is not told apart."""


def load_summary(directory: Path) -> dict[str, Any]:
    """The summary.json of an evaluation artifact. Raises ValueError if it is none."""
    path = directory / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{directory} is not an evaluation: summary.json cannot be read ({error})") from error
    if not isinstance(summary, dict) or not isinstance(summary.get("protocols"), list):
        raise ValueError(f"{path} has no list of protocols")
    return summary


def headline_entry(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """The entry that speaks for a model: `agent` on test; for a base model the better of its two prompts
    there.

    None for a summary without a model (always_search, teacher).
    """
    whole = dict(summary)
    if (entry := find_entry(whole, Protocol.AGENT, "test")) is not None:
        return entry
    names = (Protocol.FEW_SHOT, Protocol.ZERO_SHOT)
    found = [entry for name in names if (entry := find_entry(whole, name, "test")) is not None]
    return max(found, key=lambda entry: entry["accuracy"] or 0.0, default=None)


def models_summary(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The `models` of a run's JSON: label -> accuracy, n, scored, interval, accuracy_floor and the protocol.

    Labels are those of the models (base, sft, rl), or the stage's variants (`policy` counts as sft,
    `policy:rl` as rl). Summaries without a model are left out.
    """
    models = {}
    for label, summary in summaries.items():
        entry = headline_entry(summary)
        if entry is None:
            continue
        name = label.rpartition(":")[2]
        figures = ("accuracy", "n", "scored", "interval", "accuracy_floor")
        models[_NAMES.get(name, name)] = {figure: entry[figure] for figure in figures} | {"protocol": entry["name"]}
    return models


def result_table(document: Mapping[str, Any]) -> "Group":
    """The tables at the end of `afm run`, from the run's JSON document: stages, then models (rich renderables)."""
    from rich.console import Group

    tables = [_stages(document)]
    if document.get("models"):
        tables.append(_models(document["models"]))
    return Group(*tables)


def _stages(document: Mapping[str, Any]) -> "Table":
    from rich.table import Table

    table = Table(title=f"run {document.get('run_id', '')}", title_justify="left", title_style="bold")
    for name, justify in (("stage", "left"), ("", "left"), ("seconds", "right"), ("artifact", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for stage in document.get("stages", ()):
        artifact = stage.get("artifact") or {}
        reference = f"{artifact.get('kind', '')} {str(artifact.get('digest', ''))[:12]}"
        state = "cached" if stage.get("cached") else "done"
        table.add_row(stage["name"], state, f"{stage.get('seconds') or 0:.1f}", reference)
    return table


def _models(models: Mapping[str, Mapping[str, Any]]) -> "Table":
    from rich.table import Table

    table = Table(title="accuracy on held-out tasks", title_justify="left", title_style="bold")
    table.add_column("model", no_wrap=True)
    table.add_column("protocol", no_wrap=True)
    for name in ("accuracy", "95% interval", "tasks", "unscored"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in models.items():
        low, high = one["interval"]
        accuracy = "n/a" if one["accuracy"] is None else f"{one['accuracy']:.1%}"
        unscored = one["n"] - one.get("scored", one["n"])
        protocol = str(one.get("protocol", "")).replace("_", " ")
        table.add_row(name, protocol, accuracy, f"{low:.1%} to {high:.1%}", str(one["n"]), str(unscored))
    return table
