"""The stages `corpus` and `tasks`: from a configuration to documents, from documents to tasks of four splits."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from afm_core.config import AgentConfig, ConfigError, CorpusConfig, TasksConfig
from afm_core.data import (
    AgentTask,
    Document,
    Split,
    documents_from_table,
    documents_table,
    is_comparison,
    is_guessable,
    tasks_table,
)
from afm_core.store import StageContext, StageResult, read_table, write_table
from afm_core.taskcraft.generator import WorldTaskGenerator
from afm_core.taskcraft.graph import kind_of
from afm_core.taskcraft.micro import micro_documents
from afm_core.taskcraft.protocol import TaskGenerator
from afm_core.taskcraft.select import Selection, select
from afm_core.taskcraft.userfile import check_evidence, read_user_tasks
from afm_core.taskcraft.world import world_documents

DOCUMENTS_FILE = "documents.parquet"
TASKS_FILE = "tasks.parquet"

Metrics = dict[str, float | int | str | bool | None]


def build_corpus(context: StageContext) -> StageResult:
    """Stage `corpus`: writes documents.parquet."""
    documents = corpus_documents(context.section(CorpusConfig))
    rows = write_table(documents_table(documents), context.output / DOCUMENTS_FILE)
    metrics: Metrics = {"documents": len(documents), "components": len({one.component for one in documents})}
    kinds = Counter(str(kind_of(one) or "other") for one in documents)
    metrics.update({f"documents/{kind}": number for kind, number in sorted(kinds.items())})
    metrics["mean_characters"] = round(sum(len(one.text) for one in documents) / max(len(documents), 1), 1)
    return StageResult(metrics=metrics, rows={DOCUMENTS_FILE: rows})


def generate_tasks(context: StageContext) -> StageResult:
    """Stage `tasks`: writes tasks.parquet with all splits, generated or from the user's file."""
    documents = documents_from_table(read_table(context.inputs["corpus"].path / DOCUMENTS_FILE))
    selection = make_tasks(documents, context.section(TasksConfig), context.section(AgentConfig))
    rows = write_table(tasks_table(selection.tasks), context.output / TASKS_FILE)
    return StageResult(metrics=task_metrics(selection), rows={TASKS_FILE: rows})


def corpus_documents(config: CorpusConfig) -> list[Document]:
    """The documents that a configuration names."""
    if config.source == "micro":
        return micro_documents(config.seed)
    return world_documents(config.minimum_city_population)


def make_tasks(
    documents: Sequence[Document],
    config: TasksConfig,
    agent: AgentConfig,
    generator: TaskGenerator | None = None,
) -> Selection:
    """Tasks of all splits, sorted by id: the user's (`config.file`) or generated ones.

    Raises:
        ConfigError: the user's file is malformed, or the corpus cannot give the tasks that are asked for.
    """
    if config.file is not None:
        return Selection(_user_tasks(documents, config))
    generator = generator or WorldTaskGenerator(tools=tuple(sorted(agent.tools)))
    rejections: Counter[str] = Counter()
    return select(generator.candidates(documents, config, rejections), documents, config, rejections)


def _user_tasks(documents: Sequence[Document], config: TasksConfig) -> list[AgentTask]:
    path = Path(str(config.file)).expanduser()
    tasks = read_user_tasks(path, config.counts, config.seed)
    missing = [str(split) for split in Split if not any(task.split is split for task in tasks)]
    if missing:
        raise ConfigError(
            f"{path}: no task has the split {', '.join(missing)}; every run needs train, dev, gate and test "
            "(leave the field `split` out and the rows are dealt to all four)"
        )
    check_evidence(tasks, {document.id: document for document in documents}, path)
    return tasks


def task_metrics(selection: Selection) -> Metrics:
    """Counts by split, hops, kind of answer and template, and every reason for rejection."""
    counts: Counter[str] = Counter()
    for task in selection.tasks:
        split = str(task.split)
        counts[f"tasks/{split}"] += 1
        counts[f"tasks/{split}/hops_{task.difficulty.hops}"] += 1
        for name, holds in (
            ("comparison", is_comparison(task)),
            ("guessable", is_guessable(task)),
            ("held_out_template", task.template is not None and task.template.held_out),
        ):
            counts[f"tasks/{split}/{name}"] += holds
    metrics: Metrics = {"tasks": len(selection.tasks), **dict(sorted(counts.items()))}
    metrics["compositions"] = len({task.template.composition for task in selection.tasks if task.template})
    for reason, number in sorted(selection.rejections.items()):
        metrics[f"rejected/{re.sub('[^a-z_]', '_', str(reason))}"] = number
    return metrics
