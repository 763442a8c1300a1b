"""What any generator of tasks offers, whether it walks a graph of facts or asks a language model."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Protocol

from afm_core.config import TasksConfig
from afm_core.data import AgentTask, Document


class TaskGenerator(Protocol):
    """A source of candidate tasks. What becomes a task is decided afterwards (`gates`, `select`)."""

    def candidates(
        self, documents: Sequence[Document], config: TasksConfig, rejections: Counter[str]
    ) -> Iterator[AgentTask]:
        """Yield candidates lazily, in an order that depends on the arguments alone.

        A candidate carries its split, solution path, evidence spans and template; the consumer stops when it has
        enough. What the generator gives up before a candidate exists is counted in `rejections`, by reason.
        """
        ...
