"""The gate of retraining: new and old gate tasks are judged apart. A pure function, as the gate itself.

A model that was retrained for new tasks becomes champion only if it is better on the new ones (by the rule of `gate`)
and on the old ones not worse by more than `maximum_regression`. New gate tasks that are too few to tell a win from
chance decide nothing.
"""

from collections.abc import Collection
from fractions import Fraction

from afm_core.config import RegistryConfig
from afm_core.evaluation.gate import (
    BEATS,
    Decision,
    Group,
    Outcome,
    Side,
    gain_words,
    mcnemar_p_value,
    paired_of,
    refusal_of,
    side_figures,
    too_little_gain,
)


def decide_retrained(challenger: Side, champion: Side, rules: RegistryConfig, new: Collection[str]) -> Decision:
    """Decide on a model that was retrained for the tasks `new` (ids; those at the gate count). Never raises."""
    figures = side_figures(challenger), side_figures(champion)
    groups = {
        name: Group(side_figures(first), side_figures(second), paired_of(first, second))
        for name, (first, second) in {
            "new": (_part(challenger, new, True), _part(champion, new, True)),
            "old": (_part(challenger, new, False), _part(champion, new, False)),
        }.items()
    }
    if challenger.digest == champion.digest:
        outcome, reason = Outcome.ALREADY_CHAMPION, "the challenger is the champion: nothing to do"
    else:
        outcome, reason = _judge_groups(groups["new"], groups["old"], rules)
    paired = paired_of(challenger, champion)
    return Decision(outcome, reason, *figures, paired, rules.minimum_gain, rules.maximum_unscored, groups)


def tasks_needed(significance: float) -> int:
    """The fewest new gate tasks that can decide anything: where the best possible win, all of them solved by the
    challenger alone, has a McNemar probability of at most `significance`. At 5% these are 6: 2 · (1/2)^6 = 0.031.
    """
    needed = 1
    while mcnemar_p_value(needed, 0) > significance:
        needed += 1
    return needed


def too_few(tasks: int, rules: RegistryConfig) -> str | None:
    """Why so many new gate tasks decide nothing, or None if they are enough."""
    needed = tasks_needed(rules.significance)
    if tasks >= needed:
        return None
    return (
        f"{tasks} new gate tasks, and {needed} are needed: with fewer even a win on all of them could be chance "
        f"(registry.significance = {rules.significance:g})"
    )


def _judge_groups(new: Group, old: Group, rules: RegistryConfig) -> tuple[Outcome, str]:
    """The rule of retraining. Old tasks may be none: then nothing can be lost."""
    if (reason := too_few(new.challenger.n, rules)) is not None:
        return Outcome.REFUSED_TOO_FEW, reason
    for name, group in (("new ", new), ("old ", old)):
        if name == "new " or group.challenger.n or group.champion.n:
            refusal = refusal_of(name, group.challenger, group.champion, group.paired, rules)
            if refusal is not None:
                return refusal
    assert new.paired is not None, "an unpaired group was refused"
    if (reason := too_few(new.paired.n, rules)) is not None:
        return Outcome.REFUSED_TOO_FEW, f"scored on both sides: {reason}"
    failed = too_little_gain("new ", new.paired, rules)
    if failed is not None or old.paired is None or not old.paired.n:
        return failed or (Outcome.PROMOTED, f"{BEATS}{gain_words('new ', new.paired)}; there are no old gate tasks")
    figures = f"{gain_words('new ', new.paired)}; {gain_words('old ', old.paired)}"
    loss = old.paired.champion_only - old.paired.challenger_only
    if loss > Fraction(str(rules.maximum_regression)) * old.paired.n:
        margin = f"more than the {rules.maximum_regression:.1%} that may be lost on old tasks"
        return Outcome.REGRESSED, f"{margin}: {figures}"
    return Outcome.PROMOTED, BEATS + figures


def _part(side: Side, new: Collection[str], wanted: bool) -> Side:
    chosen = frozenset(new)
    return Side(side.digest, {task: solved for task, solved in side.outcomes.items() if (task in chosen) is wanted})
