"""What new rows of a task pool are held against: a profile's documents and tasks, and the configured benchmarks.

They are read from the store if a run has made them, else made here: the same functions, so the same content.
"""

from collections.abc import Callable, Sequence
from functools import cache

from afm_core.config import RunConfig
from afm_core.data import AgentTask, Document, documents_from_table, tasks_from_table
from afm_core.execution.stages import key_of
from afm_core.store import Artifact, ArtifactRef, StageSpec, Store, read_table
from afm_core.taskcraft import Known, benchmark_questions, corpus_documents, make_tasks


def known_to(config: RunConfig, store: Store) -> Callable[[Sequence[AgentTask]], Known]:
    """A function of a pool's tasks: everything that a new row may not repeat or leak. Read at its first call.

    Raises (the function):
        ConfigError: a benchmark that cannot be read, or a corpus that cannot give the profile's tasks.
    """

    @cache
    def base() -> Known:
        benchmarks = benchmark_questions(config.pool.benchmarks)
        return Known.build(*profile_tasks(config, store), benchmarks)

    return lambda pool: base().with_tasks(pool, "the pool")


def profile_tasks(config: RunConfig, store: Store) -> tuple[list[Document], list[AgentTask]]:
    """The documents and the tasks that a run of this configuration starts with."""
    corpus = _committed(config, store, "corpus", {})
    if corpus is None:
        documents = corpus_documents(config.corpus)
        return documents, make_tasks(documents, config.tasks, config.agent).tasks
    documents = documents_from_table(read_table(corpus.path / "documents.parquet"))
    tasks = _committed(config, store, "tasks", {"corpus": corpus.ref})
    if tasks is None:
        return documents, make_tasks(documents, config.tasks, config.agent).tasks
    return documents, tasks_from_table(read_table(tasks.path / "tasks.parquet"))


def _committed(config: RunConfig, store: Store, stage: str, inputs: dict[str, ArtifactRef]) -> Artifact | None:
    spec = StageSpec(stage=stage, config=config.model_dump(mode="json"), inputs=inputs, store_uri=store.uri)
    manifest = store.lookup(key_of(spec))
    return None if manifest is None else store.open(store.ref(manifest))
