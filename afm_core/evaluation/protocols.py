"""Protocols: under which conditions a task is put, and which of them each variant of the stage runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from afm_core.config import EvaluationConfig
from afm_core.data import Split


class Protocol(StrEnum):
    """The conditions of one evaluation. Every number of a report names its protocol."""

    AGENT = "agent"
    """With tools, with the run's own prompt: what a trained policy is for."""
    ZERO_SHOT = "zero_shot"
    """With tools, the language explained in full, no example: the untrained base's first chance."""
    FEW_SHOT = "few_shot"
    """As zero_shot, and worked examples (demonstrations of training tasks) in the prompt."""
    CLOSED_BOOK = "closed_book"
    """No tools: what the model knows by heart, or guesses."""
    ALWAYS_SEARCH = "always_search"
    """No model: one search, one page, a fixed rule. What a learned policy must beat."""
    TEACHER = "teacher"
    """The solution teacher, which knows the path: the ceiling of these tools and this language."""


class Variant(StrEnum):
    """Who is evaluated; the `variant` of the stage's spec, or the part of it before a colon."""

    REFERENCE = "reference"
    """No model: always_search and the teacher."""
    BASE = "base"
    """The model before any training here."""
    POLICY = "policy"
    """A trained model: SFT or RL."""
    CHAMPION = "champion"
    """The present champion: the gate's tasks alone, which is all that its defence needs."""


@dataclass(frozen=True)
class Trial:
    """One protocol on one split, at most `limit` tasks (None: all of them).

    `protocol` is the name in the summary; `conditions` is how tasks are put, when it differs: the base's
    `agent` trial on the gate split is put as few_shot, because the bare prompt would be no fair chance for
    it.
    """

    protocol: Protocol
    split: Split
    limit: int | None
    conditions: Protocol


def trials_of(variant: Variant, evaluation: EvaluationConfig, inputs: Mapping[str, object]) -> list[Trial]:
    """What a variant runs, in order.

    Without demonstrations among the inputs few_shot is left out, and the base's gate trial is put as
    zero_shot.
    """
    few_shot = "demonstrations" in inputs
    limit = evaluation.baseline_limit
    if variant is Variant.REFERENCE:
        return [
            _trial(Protocol.ALWAYS_SEARCH, evaluation.test_limit),
            _trial(Protocol.TEACHER, evaluation.test_limit),
        ]
    trials = []
    if variant is Variant.CHAMPION:
        return [Trial(Protocol.AGENT, Split.GATE, evaluation.gate_limit, Protocol.AGENT)]
    if variant is Variant.POLICY:
        trials.append(_trial(Protocol.AGENT, evaluation.test_limit))
    else:
        trials.append(_trial(Protocol.ZERO_SHOT, limit))
        trials.extend([_trial(Protocol.FEW_SHOT, limit)] if few_shot else [])
    trials.append(_trial(Protocol.CLOSED_BOOK, limit))
    conditions = Protocol.AGENT
    if variant is Variant.BASE:
        conditions = Protocol.FEW_SHOT if few_shot else Protocol.ZERO_SHOT
    trials.append(Trial(Protocol.AGENT, Split.GATE, evaluation.gate_limit, conditions))
    return trials


def variant_of(text: str) -> Variant:
    """The variant named by a stage spec, e.g. "policy" or "policy:sft". Raises ValueError if unknown."""
    return Variant(text.partition(":")[0])


def _trial(protocol: Protocol, limit: int | None) -> Trial:
    return Trial(protocol, Split.TEST, limit, protocol)
