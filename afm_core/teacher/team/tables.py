"""The record as tables: an artifact's files, and the way back to recordings.

    events/NNNNN.parquet     a row an activation, a file a shard, in the order of the plan
    recordings.parquet       a row a rollout: model, seed, tips shown, status, answer, failure
    choices.parquet          a row a task: which rollout is kept, what decided, what the judge was asked
    tips.parquet             what failed runs taught
    sidecar/times/NNNNN.parquet   seconds, endpoints, attempts, money: no two runs share them, so they have no digest

Texts that are nested (a request, a reply) are JSON. Equal runs give equal files but for the sidecar.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from afm_core.data import Status
from afm_core.engines.backbone import CallStatus, ChatReply, ChatRequest, Exchange
from afm_core.store import read_table, write_table
from afm_core.teacher.team.choice import Choice
from afm_core.teacher.team.record import CallRecord, Question, TeamEvent, TeamRecording, ToolCard
from afm_core.teacher.team.tips import Tip

_EVENT = ("id", "parent", "role", "activation", "subtask", "attempt", "problem")
_EVENT = ("id", "parent", "role", "activation", "subtask", "attempt", "problem")
_CALL = ("tag", "tool", "arguments", "argument", "thought", "remark", "tool_status", "observation")


def _schema(kind: str, texts: Iterable[str], **others: pa.DataType) -> pa.Schema:
    fields = [*((name, pa.string()) for name in texts), *others.items()]
    return pa.schema(fields, metadata={"afm.schema": kind, "afm.schema_version": "1"})


EVENTS = _schema(
    "team_event",
    (
        *("id", "rollout", "parent", "role", "activation", "subtask", "request", "call_status", "reply", "data"),
        *("problem", "call_id", *_CALL, "observation_sha256"),
    ),
    position=pa.int32(),
    attempt=pa.int32(),
    prompt_tokens=pa.int64(),
    completion_tokens=pa.int64(),
)
TIMES = _schema(
    "team_time",
    ("id", "attempts"),
    started=pa.float64(),
    seconds=pa.float64(),
    cost=pa.float64(),
)
RECORDINGS = _schema(
    "team_recording",
    ("id", "task_id", "question", "grammar", "tools", "tips", "model", "status", "answer", "failure"),
    rollout=pa.int32(),
    seed=pa.int64(),
)
CHOICES = _schema("team_choice", ("task_id", "by", "problem", "requests", "replies"), ranking=pa.list_(pa.int32()))
TIPS = _schema("team_tip", ("task_id", "text", "question", "problem", "request", "reply"))


def events_table(recordings: Iterable[TeamRecording]) -> pa.Table:
    """Every event of the recordings, in their order."""
    rows = [
        _event_row(event, recording.id, position)
        for recording in recordings
        for position, event in enumerate(recording.events)
    ]
    return pa.Table.from_pylist(rows, schema=EVENTS)


def times_table(recordings: Iterable[TeamRecording]) -> pa.Table:
    """When and where each event happened, how long it took and what it cost."""
    rows = [
        {
            "id": event.id,
            "started": event.started,
            "seconds": event.exchange.seconds if event.exchange else event.call.seconds if event.call else 0.0,
            "cost": event.exchange.cost if event.exchange else 0.0,
            "attempts": _json([one.model_dump(mode="json") for one in event.exchange.attempts])
            if event.exchange
            else None,
        }
        for recording in recordings
        for event in recording.events
    ]
    return pa.Table.from_pylist(rows, schema=TIMES)


def recordings_table(recordings: Iterable[TeamRecording]) -> pa.Table:
    """A row a rollout, without its events."""
    rows = [
        {
            **recording.model_dump(mode="json", include={"rollout", "seed", "model", "status", "answer", "failure"}),
            "id": recording.id,
            "task_id": recording.question.task_id,
            "question": recording.question.text,
            "grammar": recording.question.grammar.value,
            "tools": _json([card.model_dump(mode="json") for card in recording.tools]),
            "tips": _json(recording.tips),
        }
        for recording in recordings
    ]
    return pa.Table.from_pylist(rows, schema=RECORDINGS)


def choices_table(choices: Iterable[Choice]) -> pa.Table:
    """A row a task."""
    rows = [
        {
            "task_id": one.task_id,
            "by": one.by.value,
            "ranking": list(one.ranking),
            "problem": one.problem,
            "requests": _json([asked.request.body() for asked in one.exchanges]),
            "replies": _json([_reply(asked) for asked in one.exchanges]),
        }
        for one in choices
    ]
    return pa.Table.from_pylist(rows, schema=CHOICES)


def tips_table(tips: Iterable[Tip]) -> pa.Table:
    """A row a failed run that was learned from."""
    rows = [
        {
            **one.model_dump(mode="json", include={"task_id", "text", "question", "problem"}),
            "request": _json(one.exchange.request.body()),
            "reply": _json(_reply(one.exchange)),
        }
        for one in tips
    ]
    return pa.Table.from_pylist(rows, schema=TIPS)


def read_recordings(directory: Path) -> Iterator[TeamRecording]:
    """The recordings of an artifact, a shard of events in memory at a time; times are left out.

    Raises:
        FileNotFoundError: the directory holds no recordings. ValueError: a file is damaged.
    """
    rollouts = {row["id"]: row for row in read_table(directory / "recordings.parquet").to_pylist()}
    left = dict(rollouts)
    for file in sorted((directory / "events").glob("*.parquet")):
        by_rollout: dict[str, list[TeamEvent]] = {}
        for row in read_table(file).to_pylist():
            by_rollout.setdefault(row["rollout"], []).append(_event(row))
        for name, events in by_rollout.items():
            yield _recording(left.pop(name), events)
    for row in left.values():  # ended before anything was asked
        yield _recording(row, [])


def write_shard(directory: Path, number: int, recordings: Iterable[TeamRecording]) -> int:
    """Write one shard's events and times; returns the number of events."""
    recordings = list(recordings)
    events = events_table(recordings)
    write_table(events, directory / "events" / f"{number:05d}.parquet")
    write_table(times_table(recordings), directory / "sidecar" / "times" / f"{number:05d}.parquet")
    return int(events.num_rows)


def _event_row(event: TeamEvent, rollout: str, position: int) -> dict[str, Any]:
    exchange, call = event.exchange, event.call
    row: dict[str, Any] = {
        **event.model_dump(mode="json", include=set(_EVENT)),
        "rollout": rollout,
        "position": position,
        "data": None if event.data is None else _json(event.data),
    }
    if exchange is not None:
        tokens = exchange.reply.tokens if exchange.reply else None
        row |= {
            "request": _json(exchange.request.model_dump(mode="json")),
            "call_status": exchange.status.value,
            "reply": _json(_reply(exchange)),
            "prompt_tokens": tokens.prompt if tokens else 0,
            "completion_tokens": tokens.completion if tokens else 0,
        }
    if call is not None:
        document = call.model_dump(mode="json")
        row |= {name: document[name] for name in (*_CALL, "observation_sha256") if name in document}
        row |= {"call_id": call.id, "tool": call.name, "tool_status": call.status.value}
    return row


def _event(row: dict[str, Any]) -> TeamEvent:
    fields = {name: row[name] for name in _EVENT}
    exchange = call = None
    if row["request"] is not None:
        reply = json.loads(row["reply"])
        exchange = Exchange(
            request=ChatRequest.model_validate_json(row["request"]),
            status=CallStatus(row["call_status"]),
            reply=ChatReply.model_validate(reply) if reply is not None else None,
        )
    else:
        call = CallRecord.model_validate(
            {
                **{name: row[name] for name in ("tag", "arguments", "argument", "thought", "remark", "observation")},
                "observation_sha256": row["observation_sha256"],
                "id": row["call_id"],
                "name": row["tool"],
                "status": row["tool_status"],
            }
        )
    data = None if row["data"] is None else json.loads(row["data"])
    return TeamEvent.model_validate({**fields, "data": data, "exchange": exchange, "call": call})


def _recording(row: dict[str, Any], events: list[TeamEvent]) -> TeamRecording:
    return TeamRecording(
        question=Question(task_id=row["task_id"], text=row["question"], grammar=row["grammar"]),
        tools=tuple(ToolCard.model_validate(card) for card in json.loads(row["tools"])),
        rollout=row["rollout"],
        model=row["model"],
        seed=row["seed"],
        tips=tuple(json.loads(row["tips"])),
        events=tuple(events),
        status=Status(row["status"]),
        answer=row["answer"],
        failure=row["failure"],
    )


def _reply(exchange: Exchange) -> Any:
    return exchange.reply.model_dump(mode="json") if exchange.reply is not None else None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
