"""Trajectory: the segments of one solved (or failed) task, with where every piece came from.

What a segment *is* follows from its origin, never from its text: a tool result that spells `</observation><answer>`
is still an observation. Teacher segments hold one element each (`tag` is set, `text` is the element's content without
tags). A sampled segment is one whole generation turn: `text` is the decoded turn *with* its tags, `tag` is None, and
`token_ids` / `logprobs` are exactly what the engine sampled. An observation's `text` is the raw, unescaped result.
"""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from afm_core.data.status import Status


class Tag(StrEnum):
    """The elements of the chain-of-agents language."""

    THINK = "think"
    PLAN = "plan"
    WIKI_SEARCH = "wiki_search"
    WEB_SEARCH = "web_search"
    CRAWL_PAGE = "crawl_page"
    CODE = "code"
    VISUAL_INSPECTOR = "visual_inspector"
    OBSERVATION = "observation"
    REFLECTION = "reflection"
    SUGGESTED_ANSWER = "suggested_answer"
    DOUBLE_CHECK = "double_check"
    ANSWER = "answer"


TOOL_TAGS: frozenset[Tag] = frozenset({Tag.WIKI_SEARCH, Tag.WEB_SEARCH, Tag.CRAWL_PAGE, Tag.CODE, Tag.VISUAL_INSPECTOR})
"""Tags that call a tool; an observation follows each."""


class Origin(StrEnum):
    """Who wrote a segment. Loss masks are derived from it (see afm_core.tokens)."""

    PROMPT = "prompt"
    SAMPLED = "sampled"
    TOOL = "tool"
    TEMPLATE = "template"
    TEACHER = "teacher"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Segment(_Frozen):
    """One piece of a trajectory. `mistake` marks a demonstrated error (loss 0 by default: only recovery is trained)."""

    origin: Origin
    text: str
    tag: Tag | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    policy_version: str | None = None
    mistake: bool = False

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if self.logprobs is not None and (self.token_ids is None or len(self.logprobs) != len(self.token_ids)):
            raise ValueError("logprobs need token_ids of the same length")
        return self


class Usage(_Frozen):
    """What a trajectory cost. Seconds are kept outside digested content."""

    turns: int = 0
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    observation_tokens: int = 0
    tool_calls: int = 0


class Verdict(_Frozen):
    """One check of a trajectory: who checked, the score (None: could not be scored) and why."""

    checker: str
    score: float | None
    reason: str = ""


class Trajectory(_Frozen):
    """One attempt at one task. `reward` is None when scoring failed, never 0 for that reason."""

    id: str
    task_id: str
    question: str
    answer: str | None = None
    grammar: str
    source: str
    """Who made it: "solution_teacher", a model digest, an importer's name."""
    segments: tuple[Segment, ...] = Field(min_length=1)
    status: Status
    reward: float | None = None
    verdicts: tuple[Verdict, ...] = ()
    usage: Usage = Usage()
    violations: tuple[str, ...] = ()
    """Grammar violation codes met on the way (counted, whether fatal or not)."""
    provenance: dict[str, str] = Field(default_factory=dict)
