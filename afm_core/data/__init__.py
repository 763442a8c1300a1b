"""Vocabulary and Arrow schemas: what every room talks about. No torch here."""

from afm_core.data.documents import Document, text_sha256
from afm_core.data.growth import ADDED_FILE, NEW_TASKS_FILE, NewTasks, new_tasks
from afm_core.data.jsonl import read_jsonl
from afm_core.data.status import POLICY_FAILURES, SCORING_FAILURES, Status
from afm_core.data.tables import (
    SCHEMA_VERSION,
    documents_from_table,
    documents_table,
    tasks_from_table,
    tasks_table,
    trajectories_from_table,
    trajectories_table,
)
from afm_core.data.tasks import (
    GUESSABLE_RELATIONS,
    AgentTask,
    Difficulty,
    Domain,
    Evidence,
    Operation,
    SolutionStep,
    Split,
    Template,
    Verifier,
    VerifierKind,
    is_comparison,
    is_guessable,
    task_id,
)
from afm_core.data.trajectories import TOOL_TAGS, Origin, Segment, Tag, Trajectory, Usage, Verdict

__all__ = [
    "ADDED_FILE",
    "GUESSABLE_RELATIONS",
    "NEW_TASKS_FILE",
    "POLICY_FAILURES",
    "SCHEMA_VERSION",
    "SCORING_FAILURES",
    "TOOL_TAGS",
    "AgentTask",
    "Difficulty",
    "Document",
    "Domain",
    "Evidence",
    "NewTasks",
    "Operation",
    "Origin",
    "Segment",
    "SolutionStep",
    "Split",
    "Status",
    "Tag",
    "Template",
    "Trajectory",
    "Usage",
    "Verdict",
    "Verifier",
    "VerifierKind",
    "documents_from_table",
    "documents_table",
    "is_comparison",
    "is_guessable",
    "new_tasks",
    "read_jsonl",
    "task_id",
    "tasks_from_table",
    "tasks_table",
    "text_sha256",
    "trajectories_from_table",
    "trajectories_table",
]
