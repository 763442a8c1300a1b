"""Which rollout of a task is kept: the task's own scorer decides, a list-wise judge only where that leaves a tie.

A choice names a rollout by its number; answer and trajectory are both taken from that rollout, so they can never belong
to two different ones. The judge sees the question and what the rollouts did, never an accepted answer; candidates are
shown in an order drawn from the seed, against a judge's liking for the first. A judge that cannot be read decides
nothing: a fixed order does, and the record says so.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from afm_core.coa import elements_of
from afm_core.config import TeamConfig
from afm_core.data import Origin, Tag, Trajectory
from afm_core.engines.backbone import USABLE, Backbone, CallStatus, ChatReply, ChatRequest, Exchange, Sampling
from afm_core.teacher.team.desk import request_seed, system, user
from afm_core.teacher.team.replies import RankReply, UnreadableReply, read_reply, response_format, spoken

ASKINGS = 2
_TRACE_CHARACTERS = 3000
_OBSERVATION_CHARACTERS = 300

_JUDGE = (
    "You choose the best of several attempts at one question. Prefer the attempt whose every step follows from what "
    "its tools returned, that takes no detour, and whose answer is exactly what was asked for.\nReply with one JSON "
    'object and nothing else, in this form:\n{"reason": "in one sentence", "best": 1}'
)


class ChosenBy(StrEnum):
    """What decided."""

    SCORER = "scorer"
    """One rollout stood above the others (or there was one alone)."""
    JUDGE = "judge"
    """The judge, among equals."""
    ORDER = "order"
    """A fixed order among equals: fewest calls, shortest, first."""
    NOTHING = "nothing"
    """No rollout left anything."""


class Choice(BaseModel):
    """`ranking`: rollout numbers, the chosen one first; empty if there is none. `exchanges` are the judge's."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_id: str
    by: ChosenBy
    ranking: tuple[int, ...] = ()
    exchanges: tuple[Exchange, ...] = ()
    problem: str = ""

    @property
    def chosen(self) -> int | None:
        """The number of the kept rollout."""
        return self.ranking[0] if self.ranking else None


@dataclass(frozen=True)
class Judge:
    """Who decides ties; no model: nobody."""

    backbone: Backbone
    config: TeamConfig

    @property
    def there(self) -> bool:
        """Whether there is a judge."""
        return bool(self.config.judge_model)


def number_of(trajectory: Trajectory) -> int:
    """The rollout that a trajectory belongs to."""
    return int(trajectory.provenance["rollout"])


async def choose(task_id: str, question: str, trajectories: Sequence[Trajectory], judge: Judge | None) -> Choice:
    """Rank the scored trajectories of one task."""
    ranked = sorted(trajectories, key=lambda one: (*_standing(one), *_order(one)))
    if not ranked:
        return Choice(task_id=task_id, by=ChosenBy.NOTHING)
    equal = [one for one in ranked if _standing(one) == _standing(ranked[0])]
    ranking = tuple(number_of(one) for one in ranked)
    if len(equal) == 1:
        return Choice(task_id=task_id, by=ChosenBy.SCORER, ranking=ranking)
    if judge is None or not judge.there or ranked[0].answer is None or ranked[0].reward == 0.0:
        return Choice(task_id=task_id, by=ChosenBy.ORDER, ranking=ranking)
    best, exchanges, problem = await _judged(task_id, question, equal, judge)
    if best is None:
        return Choice(task_id=task_id, by=ChosenBy.ORDER, ranking=ranking, exchanges=exchanges, problem=problem)
    ranking = (best, *(number for number in ranking if number != best))
    return Choice(task_id=task_id, by=ChosenBy.JUDGE, ranking=ranking, exchanges=exchanges)


def _standing(trajectory: Trajectory) -> tuple[float, ...]:
    """Best first: right, then answered but not scored, then wrong, then unanswered; of equals those that obey the
    grammar (others are lost to curation). Equal standing is a tie.
    """
    illegal = float(bool(trajectory.violations))
    if trajectory.answer is None:
        return (3.0, 0.0, illegal)
    if trajectory.reward is None:
        return (1.0, 0.0, illegal)
    return (0.0, -trajectory.reward, illegal) if trajectory.reward > 0 else (2.0, 0.0, illegal)


def _order(trajectory: Trajectory) -> tuple[int, int, int]:
    return (
        trajectory.usage.tool_calls,
        sum(len(one.text) for one in trajectory.segments),
        number_of(trajectory),
    )


async def _judged(
    task_id: str, question: str, equal: Sequence[Trajectory], judge: Judge
) -> tuple[int | None, tuple[Exchange, ...], str]:
    """(the number of the best or None, what was asked, what was wrong)."""
    config = judge.config
    shown = list(equal)
    random.Random(f"{config.seed}:{task_id}").shuffle(shown)
    attempts = "\n\n".join(f"Attempt {place}:\n{trace_lines(one)}" for place, one in enumerate(shown, start=1))
    exchanges: list[Exchange] = []
    problem = ""
    for asking in range(ASKINGS):
        request = ChatRequest(
            model=config.judge_model,
            messages=(system(_JUDGE), user(f"Question: {question}\n\n{attempts}")),
            sampling=Sampling(
                temperature=0.0,
                max_tokens=config.reply_tokens,
                seed=request_seed(config.seed, f"{task_id}/judge/{asking}"),
            ),
            response_format=response_format(RankReply, config.structure),
        )
        exchange = await judge.backbone.complete(request)
        exchanges.append(exchange)
        best, problem = _read(exchange, len(shown))
        if best is not None:
            return number_of(shown[best - 1]), tuple(exchanges), ""
    return None, tuple(exchanges), problem


def _read(exchange: Exchange, count: int) -> tuple[int | None, str]:
    if exchange.status not in USABLE or exchange.status is CallStatus.TRUNCATED:
        return None, f"the judge's reply: {exchange.status}"
    try:
        best = read_reply(spoken(exchange.reply or ChatReply()), RankReply).best
    except UnreadableReply as error:
        return None, f"the judge's reply cannot be read: {error}"
    return (best, "") if 1 <= best <= count else (None, f"the judge chose {best} of {count}")


def trace_lines(trajectory: Trajectory) -> str:
    """A trajectory as a judge reads it: an element a line, observations shortened, the whole bounded."""
    lines = []
    for element in elements_of(trajectory):
        text = element.text.strip()
        if element.origin is Origin.TOOL and len(text) > _OBSERVATION_CHARACTERS:
            text = f"{text[:_OBSERVATION_CHARACTERS]} ..."
        if element.tag is not Tag.ANSWER:
            lines.append(f"[{element.tag}] {text}")
    body = "\n".join(lines)
    if len(body) > _TRACE_CHARACTERS:
        body = f"{body[: _TRACE_CHARACTERS // 2]}\n ... \n{body[-_TRACE_CHARACTERS // 2 :]}"
    return f"{body}\nAnswer: {trajectory.answer}"
