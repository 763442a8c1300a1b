"""Accuracy with its uncertainty, from rows to the summary that is published.

A policy's failure (truncated, parse error, budget, timeout) is a wrong answer. A scoring failure says nothing
about the policy and is unscored: `accuracy` = correct / scored, and beside it `accuracy_floor` = correct / n,
so that a broken grader cannot look like a good model.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from afm_core.evaluation.rows import EvaluationRow
from afm_core.evaluation.sampling import task_set_digest

Z_95 = 1.959963984540054
"""The 97.5% quantile of the standard normal distribution: two-sided 95% intervals."""


def wilson_interval(correct: float, n: int, z: float = Z_95) -> tuple[float, float]:
    """Score interval of a share of n, in [0, 1]; (0, 1) for n = 0: nothing is known. `correct` may be a sum of shares.

    centre = (p + z²/2n) / (1 + z²/n), half = z / (1 + z²/n) · sqrt(p(1 - p)/n + z²/4n²)
    (E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22, 1927).

    Raises:
        ValueError: not 0 <= correct <= n.
    """
    if not 0 <= correct <= n:
        raise ValueError(f"wilson_interval needs 0 <= correct <= n, got {correct} of {n}")
    if n == 0:
        return 0.0, 1.0
    share = correct / n
    denominator = 1 + z * z / n
    centre = (share + z * z / (2 * n)) / denominator
    half = z / denominator * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At the ends the formula gives 0 and 1 exactly; floating point would leave 1e-17 instead.
    low = 0.0 if correct == 0 else max(0.0, centre - half)
    high = 1.0 if correct == n else min(1.0, centre + half)
    return low, high


def figures(rows: Sequence[EvaluationRow]) -> dict[str, Any]:
    """n, scored, correct, accuracy (None if nothing was scored), accuracy_floor, its 95% interval."""
    scored = sum(row.scored for row in rows)
    correct = sum(row.correct for row in rows)
    low, high = wilson_interval(correct, scored)
    return {
        "n": len(rows),
        "scored": scored,
        "correct": correct,
        "accuracy": correct / scored if scored else None,
        "accuracy_floor": correct / len(rows) if rows else None,
        "interval": [low, high],
    }


def summarise(rows: Sequence[EvaluationRow], population: int | None = None) -> dict[str, Any]:
    """The summary of one protocol on one split: one entry of `protocols` in summary.json.

    `population` is the number of tasks in the split that the rows are a sample of (default: the rows
    themselves).

    Raises:
        ValueError: no rows, rows of different protocols or splits, or a task twice.
    """
    names = {(row.protocol, row.split) for row in rows}
    if len(names) != 1:
        raise ValueError(f"summarise needs rows of one protocol on one split, got {sorted(names)}")
    if len({row.id for row in rows}) != len(rows):
        raise ValueError("summarise got a task twice")
    name, split = names.pop()
    return {
        "name": name,
        "split": split,
        "population": len(rows) if population is None else population,
        "task_set": task_set_digest([row.task_id for row in rows]),
        **figures(rows),
        "status": _counted(row.status for row in rows),
        "by_hops": _grouped(rows, lambda row: str(row.hops)),
        "in_template": figures([row for row in rows if not row.held_out]),
        "out_of_template": figures([row for row in rows if row.held_out]),
        "by_answer": {
            "guessable": figures([row for row in rows if row.guessable]),
            "open": figures([row for row in rows if not row.guessable]),
        },
        "mean_tool_calls": _mean([row.tool_calls for row in rows]),
        "mean_sampled_tokens": _mean([row.sampled_tokens for row in rows]),
        "mean_observation_tokens": _mean([row.observation_tokens for row in rows]),
        "mean_turns": _mean([row.turns for row in rows]),
        "violations": _counted(code for row in rows for code in row.violations),
    }


def find_entry(summary: dict[str, Any], protocol: str, split: str) -> dict[str, Any] | None:
    """The entry of a summary.json for a protocol on a split, or None."""
    for entry in summary.get("protocols", ()):
        if entry["name"] == protocol and entry["split"] == split:
            found: dict[str, Any] = entry
            return found
    return None


def _grouped(rows: Sequence[EvaluationRow], key: Callable[[EvaluationRow], str]) -> dict[str, Any]:
    groups: dict[str, list[EvaluationRow]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {name: figures(groups[name]) for name in sorted(groups)}


def _counted(values: Iterable[str]) -> dict[str, int]:
    return {str(value): count for value, count in sorted(Counter(values).items())}


def _mean(values: Sequence[int]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0
