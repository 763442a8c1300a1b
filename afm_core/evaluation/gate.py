"""The promotion gate: does a challenger replace the champion? A pure function of two sets of outcomes.

Both models answered the same gate tasks, so the comparison is paired: only tasks that one solved and the
other did not (discordant pairs) carry evidence. The rule itself is plain: accuracy above the champion's by
more than `minimum_gain`, with at most `maximum_unscored` of the tasks unscored on either side. The paired
interval and the exact McNemar probability are reported beside it, so that a lucky promotion can be seen as
one."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, Self

from afm_core.config import RegistryConfig
from afm_core.evaluation.metrics import Z_95, wilson_interval
from afm_core.evaluation.rows import EvaluationRow


class Outcome(StrEnum):
    """What the gate decided."""

    PROMOTED = "promoted"
    """The challenger beats the champion and takes its place."""
    KEPT_CHAMPION = "kept_champion"
    """The challenger is worse."""
    NO_GAIN = "no_gain"
    """The challenger is not worse, but does not exceed the champion by more than the minimum gain."""
    REGRESSED = "regressed"
    """The challenger is better on the new tasks, but worse on the old ones beyond the margin."""
    ALREADY_CHAMPION = "already_champion"
    """Challenger and champion are the same model: nothing to do."""
    REFUSED_UNSCORED = "refused_unscored"
    """Too many answers of one side could not be scored, or there were none: the comparison is not valid."""
    REFUSED_UNPAIRED = "refused_unpaired"
    """The two sides did not answer the same tasks."""
    REFUSED_TOO_FEW = "refused_too_few"
    """There are too few new gate tasks to tell a win from chance."""
    REFUSED_POOL = "refused_pool"
    """The champion was trained for a task pool whose tasks the challenger was not asked."""


@dataclass(frozen=True)
class Side:
    """One model at the gate: its digest and, a task, whether it solved it (None: unscored)."""

    digest: str
    outcomes: Mapping[str, bool | None]

    @classmethod
    def from_rows(cls, digest: str, rows: Iterable[EvaluationRow]) -> Self:
        """The side of a model from its rows on the gate split."""
        return cls(digest, {row.task_id: row.correct if row.scored else None for row in rows})


@dataclass(frozen=True)
class SideFigures:
    """How one side did on the gate tasks. `interval` is Wilson's, 95%."""

    digest: str
    n: int
    scored: int
    correct: int
    accuracy: float | None
    interval: tuple[float, float]
    unscored_share: float


@dataclass(frozen=True)
class Paired:
    """The two sides on the n tasks that both had scored.

    `difference` is challenger minus champion, `interval` its 95% interval, `p_value` McNemar's exact
    two-sided one.
    """

    n: int
    challenger_only: int
    champion_only: int
    difference: float
    interval: tuple[float, float]
    p_value: float


@dataclass(frozen=True)
class Group:
    """Both sides and their comparison on some of the gate tasks."""

    challenger: SideFigures
    champion: SideFigures
    paired: Paired | None


@dataclass(frozen=True)
class Decision:
    """The gate's decision, the figures it rests on, and the reason in words. `groups`: see gate_retrained."""

    outcome: Outcome
    reason: str
    challenger: SideFigures
    champion: SideFigures
    paired: Paired | None
    minimum_gain: float
    maximum_unscored: float
    groups: Mapping[str, Group] = field(default_factory=dict)

    @property
    def promoted(self) -> bool:
        """Whether the challenger becomes champion."""
        return self.outcome is Outcome.PROMOTED

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the content of decision.json; no groups where there are none."""
        values = {key: str(value) if key == "outcome" else value for key, value in asdict(self).items()}
        return values if self.groups else {key: value for key, value in values.items() if key != "groups"}


def decide(challenger: Side, champion: Side, rules: RegistryConfig) -> Decision:
    """Decide. Never raises for a bad evaluation: it refuses, and says why."""
    figures = side_figures(challenger), side_figures(champion)
    paired = paired_of(challenger, champion)
    outcome, reason = _judge(challenger, champion, figures, paired, rules)
    return Decision(outcome, reason, *figures, paired, rules.minimum_gain, rules.maximum_unscored)


def defended(decision: Decision, pool: str | None) -> Decision:
    """The decision where the champion was trained for a task pool: who was not asked the pool's tasks cannot win.

    pool: name and version, None for a champion of the plain road.
    """
    if pool is None or not decision.promoted:
        return decision
    reason = (
        f"the champion was trained for the task pool {pool}, whose tasks this challenger was not asked "
        f"(`afm retrain` asks them); on the others {decision.reason}"
    )
    return replace(decision, outcome=Outcome.REFUSED_POOL, reason=reason)


def mcnemar_p_value(first_only: int, second_only: int) -> float:
    """Exact two-sided McNemar test: under no difference the discordant pairs are fair coin tosses.

    p = min(1, 2 · P(X <= min(b, c))), X ~ Binomial(b + c, 1/2) (Q. McNemar, Psychometrika 12, 1947).
    """
    n = first_only + second_only
    tail = sum(math.comb(n, k) for k in range(min(first_only, second_only) + 1))
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def paired_interval(first_only: int, second_only: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Interval of the difference of two paired shares, in [-1, 1]: Wald's with 1/2 added to each of the four
    cells.

    A. Agresti and Y. Min, "Simple improved confidence intervals for comparing matched proportions",
    Statistics in Medicine 24 (2005). For n = 0 nothing is known: (-1, 1).
    """
    if n == 0:
        return -1.0, 1.0
    b, c, total = first_only + 0.5, second_only + 0.5, n + 2
    difference = (b - c) / total
    half = z * math.sqrt(max(0.0, (b + c) - (b - c) ** 2 / total)) / total
    return max(-1.0, difference - half), min(1.0, difference + half)


def _judge(
    challenger: Side,
    champion: Side,
    figures: tuple[SideFigures, SideFigures],
    paired: Paired | None,
    rules: RegistryConfig,
) -> tuple[Outcome, str]:
    if challenger.digest == champion.digest:
        return Outcome.ALREADY_CHAMPION, "the challenger is the champion: nothing to do"
    refusal = refusal_of("", *figures, paired, rules)
    if refusal is not None or paired is None:
        return refusal or (Outcome.REFUSED_UNPAIRED, _UNPAIRED)
    return too_little_gain("", paired, rules) or (Outcome.PROMOTED, BEATS + gain_words("", paired))


_UNPAIRED = "challenger and champion were not evaluated on the same gate tasks"
BEATS = "the challenger beats the champion: "


def refusal_of(
    group: str, challenger: SideFigures, champion: SideFigures, paired: Paired | None, rules: RegistryConfig
) -> tuple[Outcome, str] | None:
    """Why the two sides cannot be compared, or None. `group` ("", "new " or "old ") names the tasks in words."""
    if paired is None:
        return Outcome.REFUSED_UNPAIRED, _UNPAIRED
    for name, side in (("challenger", challenger), ("champion", champion)):
        if side.scored == 0:
            return Outcome.REFUSED_UNSCORED, f"no {group}gate task of the {name} could be scored"
        if side.unscored_share > rules.maximum_unscored:
            return Outcome.REFUSED_UNSCORED, (
                f"{side.n - side.scored} of {side.n} {group}gate tasks of the {name} are unscored "
                f"({side.unscored_share:.1%}, at most {rules.maximum_unscored:.1%} allowed)"
            )
    return None


def too_little_gain(group: str, paired: Paired, rules: RegistryConfig) -> tuple[Outcome, str] | None:
    """Why the gain is not enough, or None."""
    # Whole numbers: 0.29 - 0.28 > 0.01 is true in floating point, and would promote without the gain asked for.
    gain = paired.challenger_only - paired.champion_only
    if gain < 0:
        return Outcome.KEPT_CHAMPION, f"the challenger is worse: {gain_words(group, paired)}"
    if paired.n == 0 or gain <= Fraction(str(rules.minimum_gain)) * paired.n:
        minimum = f"not more than the minimum gain of {rules.minimum_gain:.1%}: "
        return Outcome.NO_GAIN, minimum + gain_words(group, paired)
    return None


def gain_words(group: str, paired: Paired) -> str:
    """The gain in words and figures."""
    gain = paired.challenger_only - paired.champion_only
    return f"{gain:+d} of {paired.n} {group}gate tasks ({paired.difference:+.1%}, McNemar p = {paired.p_value:.2g})"


def side_figures(side: Side) -> SideFigures:
    """How a side did."""
    verdicts = [verdict for verdict in side.outcomes.values() if verdict is not None]
    n, scored, correct = len(side.outcomes), len(verdicts), sum(verdicts)
    return SideFigures(
        digest=side.digest,
        n=n,
        scored=scored,
        correct=correct,
        accuracy=correct / scored if scored else None,
        interval=wilson_interval(correct, scored),
        unscored_share=(n - scored) / n if n else 1.0,
    )


def paired_of(challenger: Side, champion: Side) -> Paired | None:
    """The two sides on the tasks that both had scored; None if they did not answer the same tasks."""
    if challenger.outcomes.keys() != champion.outcomes.keys():
        return None
    pairs = [
        (first, champion.outcomes[task])
        for task, first in challenger.outcomes.items()
        if first is not None and champion.outcomes[task] is not None
    ]
    first_only = sum(first and not second for first, second in pairs)
    second_only = sum(bool(second and not first) for first, second in pairs)
    return Paired(
        n=len(pairs),
        challenger_only=first_only,
        champion_only=second_only,
        difference=(first_only - second_only) / len(pairs) if pairs else 0.0,
        interval=paired_interval(first_only, second_only, len(pairs)),
        p_value=mcnemar_p_value(first_only, second_only),
    )
