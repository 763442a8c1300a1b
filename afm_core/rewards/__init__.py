"""Scoring answers: what a task's verifier says of what the policy answered."""

from afm_core.rewards.finish import scored
from afm_core.rewards.normalize import normalize, same
from afm_core.rewards.score import Score, score

__all__ = ["Score", "normalize", "same", "score", "scored"]
