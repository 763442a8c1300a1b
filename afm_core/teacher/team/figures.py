"""What a demonstration adds to the stage's figures. Counts add up: rollouts are the sum over their statuses, tasks the
sum over what chose, and attempts at a model, whoever asked (team, judge, miner of tips), the sum over theirs.
"""

from collections import Counter
from collections.abc import Iterable

from afm_core.engines.backbone import Exchange
from afm_core.teacher.team.choice import number_of
from afm_core.teacher.team.shard import TaskOutcome
from afm_core.teacher.team.tips import Tip

Figures = Counter[str]
"""Name -> count; `cost` is money and no whole number."""


def outcome_figures(outcome: TaskOutcome) -> Figures:
    """Counts of one task: rollouts by status, what chose, right ones, model calls of team and judge."""
    counts: Figures = Counter({f"chosen_by/{outcome.choice.by}": 1})
    statuses = {one.rollout: one.status for one in outcome.recordings}
    statuses.update({number_of(one): one.status for one in outcome.trajectories})  # scoring may have failed
    counts.update(f"status/{status}" for status in statuses.values())
    right = sum(one.reward == 1.0 for one in outcome.trajectories)
    counts.update(
        {
            "rollouts": len(statuses),
            "correct": right,
            "solved_tasks": int(right > 0),
            "tool_calls": sum(one.usage.tool_calls for one in outcome.trajectories),
            "invalid": sum(bool(one.violations) for one in outcome.trajectories if one.answer is not None),
        }
    )
    asked = [event.exchange for one in outcome.recordings for event in one.events if event.exchange]
    counts.update(exchange_figures([*asked, *outcome.choice.exchanges]))
    return counts


def tip_figures(tips: Iterable[Tip]) -> Figures:
    """Counts of mined tips."""
    tips = list(tips)
    counts: Figures = Counter({"tips": sum(bool(tip.text) for tip in tips)})
    counts.update(exchange_figures(tip.exchange for tip in tips))
    return counts


def exchange_figures(exchanges: Iterable[Exchange]) -> Figures:
    """Counts of model calls: attempts by status, tokens, money."""
    counts: Figures = Counter()
    for exchange in exchanges:
        counts.update(f"attempts/{attempt.status}" for attempt in exchange.attempts)
        counts["model_calls"] += 1
        counts["cost"] += exchange.cost  # type: ignore[assignment]
        if exchange.reply is not None:
            counts["prompt_tokens"] += exchange.reply.tokens.prompt
            counts["completion_tokens"] += exchange.reply.tokens.completion
    return counts
