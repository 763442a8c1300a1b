"""The multi-agent teacher: a team of language-model agents that demonstrates tasks whose solution nobody told it."""

from afm_core.teacher.team.convert import convert_team
from afm_core.teacher.team.record import (
    Activation,
    CallRecord,
    Question,
    TeamEvent,
    TeamRecording,
    TeamRole,
    ToolCard,
    rollout_id,
)
from afm_core.teacher.team.replay import ReplayDiverged, replay
from afm_core.teacher.team.team import Rollout, Setting, solve

__all__ = [
    "Activation",
    "CallRecord",
    "Question",
    "ReplayDiverged",
    "Rollout",
    "Setting",
    "TeamEvent",
    "TeamRecording",
    "TeamRole",
    "ToolCard",
    "convert_team",
    "replay",
    "rollout_id",
    "solve",
]
