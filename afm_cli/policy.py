"""What `afm ask` and `afm serve` share: a model with the tools of its configuration, ready to answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from afm_cli.common import open_configured_store, open_model, say

if TYPE_CHECKING:
    from afm_core.config import RunConfig
    from afm_core.data import Document
    from afm_core.rollout.live import LivePolicy


@contextmanager
def live_policy(config: "RunConfig", model: str) -> "Iterator[LivePolicy]":
    """Open model, tools and engine; the documents are the newest corpus of the store, else the profile's.

    `model` is what `open_model` understands. Raises ConfigError if there is no such model.
    """
    from afm_core.config import home
    from afm_core.engines import open_engine
    from afm_core.rollout.live import LivePolicy
    from afm_core.tools import build_tools

    directory, version = open_model(config, model)
    tools = build_tools(config.agent, _documents(config), home() / "cache")
    say(f"loading {model} ...")
    engine = open_engine(config.engine, directory, version)
    try:
        with LivePolicy(engine, tools, config.agent) as policy:
            yield policy
    finally:
        engine.close()


def _documents(config: "RunConfig") -> "list[Document]":
    from afm_core.data import documents_from_table
    from afm_core.store import ArtifactKind, read_table
    from afm_core.taskcraft import corpus_documents

    store = open_configured_store(config.store.uri)
    newest = store.ls(ArtifactKind.CORPUS)[-1:]
    if newest:
        return documents_from_table(read_table(store.open(store.ref(newest[0])).path / "documents.parquet"))
    return list(corpus_documents(config.corpus))
