"""Binds the tags of an agent's language to tools by name."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from afm_core.config import AgentConfig, ConfigError
from afm_core.data import TOOL_TAGS, Document, Tag
from afm_core.tools.index import SentenceIndex
from afm_core.tools.local import ReadLocal, SearchLocal
from afm_core.tools.protocol import Tool

TOOL_NAMES = (SearchLocal.name, ReadLocal.name)

CHARACTERS_PER_TOKEN = 4
"""Tools cut by characters before the rollout cuts by tokens; no tokenizer is needed here."""


def build_tools(
    agent: AgentConfig, documents: Sequence[Document], cache: Path, components: frozenset[str] | None = None
) -> dict[Tag, Tool]:
    """The tools of an agent over a corpus, by tag.

    Args:
        agent: `tools` binds tags to tool names; `search_results` and the observation budget apply.
        documents: the corpus, in any order.
        cache: directory of search indexes, shared by processes.
        components: only documents of these components are searched and read; None: all.

    Raises:
        ConfigError: a tag that calls no tool, or an unknown tool (the nearest is named).
    """
    check_tools(agent)
    limit = agent.budget.observation_tokens * CHARACTERS_PER_TOKEN
    made: dict[str, Tool] = {}
    for name in agent.tools.values():
        if name in made:
            continue
        if name == SearchLocal.name:
            made[name] = SearchLocal(SentenceIndex(documents, cache), agent.search_results, components, limit)
        else:
            made[name] = ReadLocal(documents, components, limit)
    return {Tag(tag): made[name] for tag, name in agent.tools.items()}


def check_tools(agent: AgentConfig) -> None:
    """Raises ConfigError for a tag that calls no tool, or an unknown tool; names the nearest."""
    tags = sorted(str(one) for one in TOOL_TAGS)
    for tag, name in agent.tools.items():
        if tag not in tags:
            raise ConfigError(f"agent.tools: {tag!r} is no tag that calls a tool{nearest(tag, tags)}")
        if name not in TOOL_NAMES:
            raise ConfigError(f"agent.tools.{tag}: no tool {name!r}{nearest(name, TOOL_NAMES)}")


def check_tool_name(name: str, bound: Mapping[str, str]) -> None:
    """Raises ConfigError unless `name` is a tool, or a tag that is bound to one; names the nearest."""
    known = [*TOOL_NAMES, *bound]
    if name not in known:
        raise ConfigError(f"no tool {name!r}{nearest(name, known)}")


def nearest(name: str, known: Sequence[str]) -> str:
    """The end of an error message: the nearest known name, and all of them."""
    match = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    meant = f"; did you mean {match[0]!r}?" if match else ""
    return f"{meant} (known: {', '.join(known)})"
