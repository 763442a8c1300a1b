"""The promotion gate: does a challenger replace the champion? A pure function of two sets of outcomes.

Both models answered the same gate tasks, so the comparison is paired: only tasks that one solved and the
other did not (discordant pairs) carry evidence. The rule itself is plain: accuracy above the champion's by
more than `minimum_gain`, with at most `maximum_unscored` of the tasks unscored on either side. The paired
interval and the exact McNemar probability are reported beside it, so that a lucky promotion can be seen as
one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
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
    ALREADY_CHAMPION = "already_champion"
    """Challenger and champion are the same model: nothing to do."""
    REFUSED_UNSCORED = "refused_unscored"
    """Too many answers of one side could not be scored, or there were none: the comparison is not valid."""
    REFUSED_UNPAIRED = "refused_unpaired"
    """The two sides did not answer the same tasks."""


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
class Decision:
    """The gate's decision, the figures it rests on, and the reason in words."""

    outcome: Outcome
    reason: str
    challenger: SideFigures
    champion: SideFigures
    paired: Paired | None
    minimum_gain: float
    maximum_unscored: float

    @property
    def promoted(self) -> bool:
        """Whether the challenger becomes champion."""
        return self.outcome is Outcome.PROMOTED

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, the content of decision.json."""
        return {key: str(value) if key == "outcome" else value for key, value in asdict(self).items()}


def decide(challenger: Side, champion: Side, rules: RegistryConfig) -> Decision:
    """Decide. Never raises for a bad evaluation: it refuses, and says why."""
    figures = _figures(challenger), _figures(champion)
    paired = _paired(challenger, champion)
    outcome, reason = _judge(challenger, champion, figures, paired, rules)
    return Decision(outcome, reason, *figures, paired, rules.minimum_gain, rules.maximum_unscored)


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
    if paired is None:
        return Outcome.REFUSED_UNPAIRED, "challenger and champion were not evaluated on the same gate tasks"
    for name, side in zip(("challenger", "champion"), figures, strict=True):
        if side.scored == 0:
            return Outcome.REFUSED_UNSCORED, f"no gate task of the {name} could be scored"
        if side.unscored_share > rules.maximum_unscored:
            return Outcome.REFUSED_UNSCORED, (
                f"{side.n - side.scored} of {side.n} gate tasks of the {name} are unscored "
                f"({side.unscored_share:.1%}, at most {rules.maximum_unscored:.1%} allowed)"
            )
    # Whole numbers: 0.29 - 0.28 > 0.01 is true in floating point, and would promote without the gain asked
    # for.
    gain = paired.challenger_only - paired.champion_only
    figures_text = f"{gain:+d} of {paired.n} gate tasks ({paired.difference:+.1%}, McNemar p = {paired.p_value:.2g})"
    if gain < 0:
        return Outcome.KEPT_CHAMPION, f"the challenger is worse: {figures_text}"
    if paired.n == 0 or gain <= Fraction(str(rules.minimum_gain)) * paired.n:
        return Outcome.NO_GAIN, f"not more than the minimum gain of {rules.minimum_gain:.1%}: {figures_text}"
    return Outcome.PROMOTED, f"the challenger beats the champion: {figures_text}"


def _figures(side: Side) -> SideFigures:
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


def _paired(challenger: Side, champion: Side) -> Paired | None:
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
