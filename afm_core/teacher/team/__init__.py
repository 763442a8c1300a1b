"""The multi-agent teacher: a team of language-model agents that demonstrates tasks whose solution nobody told it."""

from afm_core.teacher.team.record import (
    Activation,
    CallRecord,
    Question,
    TeamEvent,
    TeamRecording,
    TeamRole,
    rollout_id,
)
from afm_core.teacher.team.team import Rollout, Setting, solve

__all__ = [
    "Activation",
    "CallRecord",
    "Question",
    "Rollout",
    "Setting",
    "TeamEvent",
    "TeamRecording",
    "TeamRole",
    "rollout_id",
    "solve",
]
