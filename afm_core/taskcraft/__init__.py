"""Corpora and verifiable tasks: documents, a generator over their facts, gates, splits, and the user's own tasks."""

from afm_core.taskcraft.admission import Admission, Known, Refusal, admit, dealt, normal_question
from afm_core.taskcraft.answers import accepted_answers
from afm_core.taskcraft.benchmarks import benchmark_questions
from afm_core.taskcraft.compositions import Chain, Comparison, compositions, held_out_names
from afm_core.taskcraft.gates import Rejection, check_task
from afm_core.taskcraft.generator import WorldTaskGenerator
from afm_core.taskcraft.graph import Fact, FactGraph, read_facts
from afm_core.taskcraft.incoming import Ingested, ingested_figures, poll_once, write_rejects
from afm_core.taskcraft.micro import micro_documents
from afm_core.taskcraft.pool import (
    PoolVersion,
    Published,
    find_version,
    mark_announced,
    pool_head,
    pool_names,
    pool_tasks,
    pool_versions,
    publish_rows,
    unannounced,
)
from afm_core.taskcraft.protocol import TaskGenerator
from afm_core.taskcraft.relations import RELATIONS, Kind, Relation
from afm_core.taskcraft.rows import BadRow, GoodRow, NotTasks, generated_rows, read_rows
from afm_core.taskcraft.select import Selection, select
from afm_core.taskcraft.splits import plan_splits
from afm_core.taskcraft.stages import build_corpus, corpus_documents, generate_tasks, make_tasks, task_metrics
from afm_core.taskcraft.userfile import read_user_tasks, user_rows
from afm_core.taskcraft.world import world_documents

__all__ = [
    "RELATIONS",
    "Admission",
    "BadRow",
    "Chain",
    "Comparison",
    "Fact",
    "FactGraph",
    "GoodRow",
    "Ingested",
    "Kind",
    "Known",
    "NotTasks",
    "PoolVersion",
    "Published",
    "Refusal",
    "Rejection",
    "Relation",
    "Selection",
    "TaskGenerator",
    "WorldTaskGenerator",
    "accepted_answers",
    "admit",
    "benchmark_questions",
    "build_corpus",
    "check_task",
    "compositions",
    "corpus_documents",
    "dealt",
    "find_version",
    "generate_tasks",
    "generated_rows",
    "held_out_names",
    "ingested_figures",
    "make_tasks",
    "mark_announced",
    "micro_documents",
    "normal_question",
    "plan_splits",
    "poll_once",
    "pool_head",
    "pool_names",
    "pool_tasks",
    "pool_versions",
    "publish_rows",
    "read_facts",
    "read_rows",
    "read_user_tasks",
    "select",
    "task_metrics",
    "unannounced",
    "user_rows",
    "world_documents",
    "write_rejects",
]
