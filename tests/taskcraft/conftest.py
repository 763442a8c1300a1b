"""One world, one micro world and their tasks for all tests of the room."""

import pytest

from afm_core.config import AgentConfig, CorpusConfig, SplitCounts, TasksConfig
from afm_core.data import Document
from afm_core.taskcraft import Selection, corpus_documents, make_tasks

SMOKE = TasksConfig(counts=SplitCounts(train=96, dev=12, gate=16, test=24))


@pytest.fixture(scope="session")
def world() -> list[Document]:
    return corpus_documents(CorpusConfig())


@pytest.fixture(scope="session")
def world_tasks(world: list[Document]) -> Selection:
    return make_tasks(world, TasksConfig(), AgentConfig())


@pytest.fixture(scope="session")
def micro() -> list[Document]:
    return corpus_documents(CorpusConfig(source="micro"))


@pytest.fixture(scope="session")
def micro_tasks(micro: list[Document]) -> Selection:
    return make_tasks(micro, SMOKE, AgentConfig())


@pytest.fixture
def smoke() -> TasksConfig:
    return SMOKE
