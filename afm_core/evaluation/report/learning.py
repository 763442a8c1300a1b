"""The report's section on reinforcement learning: curves over the steps, who did not train and why, what was warned of.

Everything comes from the rl.json that training wrote beside the model; nothing is measured again.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from afm_core.data import Status
from afm_core.evaluation.report import charts, panels
from afm_core.evaluation.rl_results import end_words

_STEP_PANELS = (
    ("Mean reward of the sampled episodes", "reward"),
    ("Groups with signal, share of those sampled", "live_share"),
    ("Policy loss", "loss"),
    ("Entropy (nats a token)", "entropy"),
    ("Tool calls an episode, mean", "mean_tool_calls"),
    ("Model tokens an episode, mean", "mean_model_tokens"),
    ("KL between trainer and sampler (nats a token)", "kl_sampler"),
)
_REASON_WORDS = {
    "no_signal": "group without signal (all alike)",
    "small_group": "too few of the group could train",
    "not_finite": "reward not finite",
    "no_logprobs": "no log-probabilities",
    "too_long": "longer than rl.max_tokens",
    "stale": "sampled by too old a policy",
}


@dataclass(frozen=True)
class RlView:
    """What RL left: the content of rl.json, and how many tasks the selection kept and dropped, by reason."""

    record: Mapping[str, Any]
    selection: Mapping[str, int] = field(default_factory=dict)

    @property
    def end(self) -> str:
        """Why it ended and which model it kept."""
        return end_words(self.record)

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The records of the steps."""
        return list(self.record["steps"])

    @property
    def warnings(self) -> list[str]:
        """What was warned of on the way."""
        return list(self.record.get("warnings", ()))

    @property
    def statuses(self) -> Mapping[str, int]:
        """How the sampled episodes ended, over all steps."""
        counts: Counter[str] = Counter()
        for step in self.steps:
            counts.update(step.get("status", {}))
        return counts

    def accuracy(self, step: int) -> float | None:
        """Greedy accuracy on the dev tasks after `step` updates, None if it was not measured."""
        return next((one["accuracy"] for one in self.record["evaluations"] if one["step"] == step), None)


def section(rl: RlView | None) -> dict[str, Any] | None:
    """The parts of the section, for the template."""
    if rl is None:
        return None
    return {
        "view": rl,
        "panels": curve_panels(rl),
        "left_out": left_out(rl),
        "selection": selection_bars(rl),
        "endings": endings(rl),
    }


def headline(rl: RlView | None) -> str:
    """For a run of RL alone: what became of the accuracy on the dev tasks. Empty if that was not measured."""
    before, after = (rl.accuracy(step) for step in (0, rl.record["registered_step"])) if rl else (None, None)
    if before is None or after is None:
        return ""
    return f"Reinforcement learning: accuracy on the dev tasks from {before:.1%} to {after:.1%}."


def curve_panels(rl: RlView) -> list[tuple[str, Markup]]:
    """(title, chart) in reading order: accuracy on dev first, with the step that was kept marked."""
    evaluated = [one for one in rl.record["evaluations"] if one["accuracy"] is not None]
    at = [one["step"] for one in (*rl.steps, *evaluated)]
    if not at:
        return []
    span = (min(at), max(at))
    dev = panels.Panel(
        "Accuracy on the dev tasks, greedy, with 95% Wilson intervals",
        [(one["step"], one["accuracy"]) for one in evaluated],
        intervals=[(one["step"], *one["interval"]) for one in evaluated],
        share=True,
    )
    drawn = [(dev.title, panels.draw(dev, span, rl.record["registered_step"]))]
    for title, name in _STEP_PANELS:
        points = [(one["step"], value) for one in rl.steps if (value := _value(one, name)) is not None]
        drawn.append((title, panels.draw(panels.Panel(title, points, share=name == "live_share"), span)))
    return [(title, chart) for title, chart in drawn if chart]


def left_out(rl: RlView) -> list[tuple[str, int, float, str]]:
    """Bars of the sampled trajectories: those that trained, then those that did not by reason, most first."""
    masked: Counter[str] = Counter()
    for step in rl.steps:
        masked.update(step.get("masked", {}))
    trained = sum(int(step.get("trajectories", 0)) for step in rl.steps)
    return _bars("trained", trained, masked)


def selection_bars(rl: RlView) -> list[tuple[str, int, float, str]]:
    """Bars of the tasks that were considered: kept, then dropped by reason. Empty if nothing was dropped."""
    dropped = Counter({reason: count for reason, count in rl.selection.items() if reason != "kept"})
    return _bars("kept", rl.selection.get("kept", 0), dropped) if dropped else []


def endings(rl: RlView) -> Markup:
    """The statuses as one bar."""
    counts = rl.statuses
    parts = [charts.Part(one.value, counts[one.value], f"status-{one.value}") for one in Status if one.value in counts]
    return charts.stacked_bar(parts, "How sampled episodes ended") if parts else Markup("")


def _value(step: Mapping[str, Any], name: str) -> float | None:
    if name == "live_share":
        return step["live_groups"] / step["groups"] if step.get("groups") else None
    return float(step[name]) if isinstance(step.get(name), int | float) else None


def _bars(first: str, count: int, others: Mapping[str, int]) -> list[tuple[str, int, float, str]]:
    total = count + sum(others.values())
    if not total:
        return []
    ordered: Sequence[tuple[str, int]] = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    return [(first, count, count / total, "kept")] + [
        (_REASON_WORDS.get(reason, reason.replace("_", " ")), number, number / total, "rejected")
        for reason, number in ordered
    ]
