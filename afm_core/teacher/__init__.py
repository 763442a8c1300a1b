"""The solution teacher: demonstrates tasks whose solution path is known, through the real tools, and records
it.

It is named for what it is: it knows the solution and recognises it when it sees it; it is no language model.
"""

from afm_core.teacher.clairvoyance import check_clairvoyance
from afm_core.teacher.convert import convert, segment_events, trajectory_id
from afm_core.teacher.demonstrations import (
    demonstrate_all,
    few_shot_examples,
    held_out_components,
    teacher_ceiling,
    training_components,
)
from afm_core.teacher.events import SOURCE, TEAM_SOURCE, Event, MistakeKind, Recording, Role, events_table
from afm_core.teacher.system import demonstrate

__all__ = [
    "SOURCE",
    "TEAM_SOURCE",
    "Event",
    "MistakeKind",
    "Recording",
    "Role",
    "check_clairvoyance",
    "convert",
    "demonstrate",
    "demonstrate_all",
    "events_table",
    "few_shot_examples",
    "held_out_components",
    "segment_events",
    "teacher_ceiling",
    "training_components",
    "trajectory_id",
]
