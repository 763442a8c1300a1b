"""Carries a promotion out in the registry. Idempotent, so that a rerun after a kill completes what was begun.

Registering and crowning are two calls to a server; the process may die between them. The version carries the digest
of the model as a tag, and a rerun finds it by that tag instead of adding a second one; the alias is set last. Until
then the old champion stands, which is consistent.
"""

import json

from afm_core.config import parse_config
from afm_core.data import NewTasks
from afm_core.evaluation.gate import Decision
from afm_core.store import ArtifactRef, StageContext
from afm_core.tracking import POOL_KNOWN_TAG, POOL_TAG, POOL_VERSION_TAG

RL_ACCOUNT = "rl.json"
"""What a model that RL trained tells of its training (see afm_core.training.rl.stage)."""


class ChampionChanged(RuntimeError):
    """Another run crowned a model since this one asked whom to beat: the comparison is out of date."""


def promote(context: StageContext, decision: Decision, grown: NewTasks | None = None) -> str:
    """Register the challenger with its lineage and make it the champion; returns the registry's version.

    Raises:
        ChampionChanged: the registry's champion is neither the one that was beaten nor the challenger itself.
        Exception: whatever the registry raises once its own retries are used up; nothing is swallowed.
    """
    from afm_core.tracking import Registry

    challenger = context.inputs["challenger"].ref
    registry = Registry.of(parse_config(context.spec.config))
    present = registry.champion()
    expected = {challenger.digest, context.inputs["champion"].ref.digest}
    if present is not None and present.ref.digest not in expected:
        raise ChampionChanged(
            f"the registry's champion is now {present.ref.digest[:12]}, not {decision.champion.digest[:12]}, which "
            "the challenger was compared with; run again"
        )
    version = registry.register(challenger, tags=promotion_tags(context, decision, grown))
    registry.set_champion(version)
    return str(version)


def champion_pool(context: StageContext) -> str | None:
    """The task pool (name@version) that the champion of the comparison was trained for, None for the plain road.

    Raises:
        Exception: as `promote`.
    """
    from afm_core.tracking import Registry

    present = Registry.of(parse_config(context.spec.config)).champion()
    if present is None or present.ref.digest != context.inputs["champion"].ref.digest:
        return None
    pool = present.tags.get(POOL_TAG)
    return f"{pool}@{present.tags.get(POOL_VERSION_TAG, '?')}" if pool else None


def record_rejection(context: StageContext, decision: Decision, grown: NewTasks) -> str:
    """Register a challenger that was not promoted, with the reason and without the alias; returns the version.

    Of a model that is registered already (a former champion) only outcome and reason are written anew.

    Raises:
        Exception: as `promote`.
    """
    from afm_core.tracking import Registry

    registry = Registry.of(parse_config(context.spec.config))
    challenger = context.inputs["challenger"].ref
    if (known := registry.find(challenger.digest)) is not None:
        registry.tag(known.version, outcome_tags(decision))
        return known.version
    return registry.register(challenger, tags=promotion_tags(context, decision, grown))


def outcome_tags(decision: Decision) -> dict[str, str]:
    """What the gate said of a version."""
    return {"afm.outcome": str(decision.outcome), "afm.reason": decision.reason}


def promotion_tags(context: StageContext, decision: Decision, grown: NewTasks | None = None) -> dict[str, str]:
    """What a registered version tells of itself: content, origin, whom it met at the gate, and how that ended."""
    inputs = context.inputs
    challenger = inputs["challenger"]
    tags = {
        "afm.digest": challenger.ref.digest,
        "afm.uri": challenger.ref.uri,
        "afm.stage": challenger.manifest.stage,
        "afm.store": context.spec.store_uri,
        "afm.predecessor": inputs["champion"].ref.digest,
        "afm.predecessor_uri": inputs["champion"].ref.uri,
        "afm.evaluation": inputs["challenger_evaluation"].ref.digest,
        "afm.gate.accuracy": _text(decision.challenger.accuracy),
        "afm.gate.predecessor_accuracy": _text(decision.champion.accuracy),
        "afm.gate.tasks": str(decision.challenger.n),
    }
    tags |= outcome_tags(decision)
    if grown is not None:
        tags |= {POOL_TAG: grown.pool, POOL_VERSION_TAG: str(grown.version), POOL_KNOWN_TAG: str(grown.known)}
    account = challenger.path / RL_ACCOUNT
    if account.exists():
        tags["afm.rl.registered_step"] = str(json.loads(account.read_text(encoding="utf-8"))["registered_step"])
    tags |= {f"afm.parent.{name}": _named(ref) for name, ref in sorted(challenger.manifest.parents.items())}
    return tags


def _named(ref: ArtifactRef) -> str:
    return f"{ref.kind}:{ref.digest}"


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
