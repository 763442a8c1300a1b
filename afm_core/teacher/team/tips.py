"""Tips: what failed runs teach, kept for the planner of later tasks (the largest gain in OAgents, arXiv 2506.15741).

A model reads a failed run and what is known of its end, never an accepted answer, and says in one sentence what to do
differently. A tip that names an accepted answer all the same is dropped. Tips of a shard are shown from the next shard
on, so that a resumed stage shows every planner exactly what it would have been shown.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from afm_core.config import TeamConfig
from afm_core.data import AgentTask, Trajectory
from afm_core.engines.backbone import USABLE, Backbone, CallStatus, ChatReply, ChatRequest, Exchange, Sampling
from afm_core.teacher.reading import mentions
from afm_core.teacher.team.choice import trace_lines
from afm_core.teacher.team.desk import request_seed, system, user
from afm_core.teacher.team.replies import TipReply, UnreadableReply, read_reply, response_format, spoken
from afm_core.tools import fold

_WORD = re.compile(r"\w{3,}")

_MINER = (
    "You learn from a run that failed: its answer was judged wrong, or it gave none. Say in one general sentence what "
    "a planner should do differently with questions of this kind. Name no answer and nothing that is true of this one "
    'question only.\nReply with one JSON object and nothing else, in this form:\n{"tip": "..."}'
)


class Tip(BaseModel):
    """One lesson, the question that taught it, and how it was asked for. Without a text nothing was learned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    task_id: str
    question: str
    exchange: Exchange
    problem: str = ""


def tips_for(question: str, tips: Sequence[Tip], count: int) -> tuple[str, ...]:
    """The tips whose questions are most like this one (shared words, rare ones weigh more), else the latest."""
    tips = [tip for tip in tips if tip.text]
    words = [_words(tip.question) for tip in tips]
    seen = Counter(word for one in words for word in one)
    asked = _words(question)
    weights = [sum(math.log(1 + len(tips) / seen[word]) for word in asked & one) for one in words]
    ranked = sorted(range(len(tips)), key=lambda place: (-weights[place], -place))
    return tuple(tips[place].text for place in ranked[:count])


async def mine(
    failed: Sequence[Trajectory],
    tasks: Mapping[str, AgentTask],
    known: Sequence[Tip],
    model: str,
    backbone: Backbone,
    config: TeamConfig,
) -> list[Tip]:
    """What failed runs teach, `config.tips_per_shard` at most, one a task; known and telling tips lose their text."""
    first = {one.task_id: one for one in sorted(failed, key=lambda one: (one.task_id, one.id), reverse=True)}
    sources = [first[name] for name in sorted(first)][: config.tips_per_shard]
    exchanges = await asyncio.gather(*(backbone.complete(_request(one, model, config)) for one in sources))
    tips: list[Tip] = []
    texts = {fold(tip.text) for tip in known}
    for source, exchange in zip(sources, exchanges, strict=True):
        text, problem = _read(exchange)
        if any(mentions(text, answer) for answer in tasks[source.task_id].answers):
            text, problem = "", "it names an accepted answer"
        elif fold(text) in texts:
            text, problem = "", problem or "it is known"
        texts.add(fold(text))
        tip = Tip(text=text, task_id=source.task_id, question=source.question, exchange=exchange, problem=problem)
        tips.append(tip)
    return tips


def _request(failed: Trajectory, model: str, config: TeamConfig) -> ChatRequest:
    shown = f"Question: {failed.question}\n\n{trace_lines(failed)}\n\nIt ended as {failed.status}."
    return ChatRequest(
        model=model,
        messages=(system(_MINER), user(shown)),
        sampling=Sampling(
            temperature=0.0, max_tokens=config.reply_tokens, seed=request_seed(config.seed, f"{failed.id}/tip")
        ),
        response_format=response_format(TipReply, config.structure),
    )


def _read(exchange: Exchange) -> tuple[str, str]:
    """(the tip, what was wrong)."""
    if exchange.status not in USABLE or exchange.status is CallStatus.TRUNCATED:
        return "", f"the reply: {exchange.status}"
    try:
        return read_reply(spoken(exchange.reply or ChatReply()), TipReply).tip, ""
    except UnreadableReply as error:
        return "", f"the reply cannot be read: {error}"


def _words(text: str) -> set[str]:
    return set(_WORD.findall(fold(text)))
