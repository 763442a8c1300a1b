"""Corpora and verifiable tasks: documents, a generator over their facts, gates, splits, and the user's own tasks."""

from afm_core.taskcraft.answers import accepted_answers
from afm_core.taskcraft.compositions import Chain, Comparison, compositions, held_out_names
from afm_core.taskcraft.gates import Rejection, check_task
from afm_core.taskcraft.generator import WorldTaskGenerator
from afm_core.taskcraft.graph import Fact, FactGraph, read_facts
from afm_core.taskcraft.micro import micro_documents
from afm_core.taskcraft.protocol import TaskGenerator
from afm_core.taskcraft.relations import RELATIONS, Kind, Relation
from afm_core.taskcraft.select import Selection, select
from afm_core.taskcraft.splits import plan_splits
from afm_core.taskcraft.stages import build_corpus, corpus_documents, generate_tasks, make_tasks, task_metrics
from afm_core.taskcraft.userfile import read_user_tasks, user_rows
from afm_core.taskcraft.world import world_documents

__all__ = [
    "RELATIONS",
    "Chain",
    "Comparison",
    "Fact",
    "FactGraph",
    "Kind",
    "Rejection",
    "Relation",
    "Selection",
    "TaskGenerator",
    "WorldTaskGenerator",
    "accepted_answers",
    "build_corpus",
    "check_task",
    "compositions",
    "corpus_documents",
    "generate_tasks",
    "held_out_names",
    "make_tasks",
    "micro_documents",
    "plan_splits",
    "read_facts",
    "read_user_tasks",
    "select",
    "task_metrics",
    "user_rows",
    "world_documents",
]
