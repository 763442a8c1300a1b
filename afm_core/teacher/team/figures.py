"""What a task's demonstration adds to the stage's figures. Counts add up: rollouts are the sum over their statuses,
attempts at a model are the sum over theirs, tasks the sum over what chose.
"""

from collections import Counter

from afm_core.teacher.team.choice import number_of
from afm_core.teacher.team.shard import TaskOutcome


def figures(outcome: TaskOutcome) -> dict[str, float | int]:
    """Counts of one task: rollouts by status, what chose, right ones, tokens, attempts by status, money."""
    counts: Counter[str] = Counter({f"chosen_by/{outcome.choice.by}": 1})
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
    exchanges = [event.exchange for one in outcome.recordings for event in one.events if event.exchange]
    money = 0.0
    for exchange in [*exchanges, *outcome.choice.exchanges]:
        counts.update(f"attempts/{attempt.status}" for attempt in exchange.attempts)
        counts["model_calls"] += 1
        if exchange.reply is not None:
            counts["prompt_tokens"] += exchange.reply.tokens.prompt
            counts["completion_tokens"] += exchange.reply.tokens.completion
        money += exchange.cost
    return {**counts, **({"cost": money} if money else {})}
