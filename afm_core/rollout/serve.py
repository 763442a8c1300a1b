"""An OpenAI-compatible endpoint with the tools inside: one chat completion is one whole episode.

The question is the last user message (earlier turns stand before it as plain text; system messages are ignored: the
policy has a prompt of its own). `content` is the answer; the trace comes as `reasoning_content`, in streams piece by
piece. `afm` holds the episode's status. finish_reason is "length" for a policy that ran out of a budget. An episode
that failed for a reason outside the policy is an HTTP error 502.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.exceptions import HTTPException

from afm_core.coa import render_trajectory
from afm_core.data import SCORING_FAILURES, Status, Trajectory
from afm_core.rollout.live import LivePolicy, Piece, Ticket

_WAITING_LIMIT = 256
_SHOWN_CHARACTERS = 60
_EXPECTED = {
    "messages": "a list of messages (objects), at least one",
    "model": "a text",
    "stream": "true or false",
    "stream_options": "an object",
    "temperature": "a number of at least 0",
    "seed": "a whole number",
    "max_tokens": "a whole number above 0",
    "max_completion_tokens": "a whole number above 0",
    "n": "1 (one answer a request)",
}
"""What belongs into each field that is read."""
_OUT_OF_BUDGET = frozenset({Status.TRUNCATED, Status.BUDGET_EXHAUSTED, Status.TIMEOUT})


class _Request(BaseModel):
    """What we read of a chat completion request; other fields are accepted and ignored."""

    model_config = ConfigDict(extra="ignore")

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str = ""
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    temperature: float = Field(default=0.0, ge=0)
    seed: int = 0
    max_tokens: int | None = Field(default=None, gt=0)
    max_completion_tokens: int | None = Field(default=None, gt=0)
    n: Literal[1] = 1

    @model_validator(mode="before")
    @classmethod
    def _null_is_left_out(cls, values: Any) -> Any:
        """OpenAI's API takes null for every optional field, and clients send it."""
        return {k: v for k, v in values.items() if v is not None} if isinstance(values, dict) else values


class _Answering:
    """One question's pieces, handed from the policy's thread to the event loop."""

    def __init__(self, policy: LivePolicy, asked: _Request) -> None:
        self._arrived: asyncio.Queue[Piece | Trajectory] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        limit = asked.max_completion_tokens or asked.max_tokens

        def deliver(piece: Piece | Trajectory) -> None:
            loop.call_soon_threadsafe(self._arrived.put_nowait, piece)

        self.ticket: Ticket = policy.ask(
            question_of(asked.messages),
            deliver,
            asked.temperature,
            asked.seed,
            limit,
        )

    async def pieces(self) -> AsyncIterator[Piece | Trajectory]:
        """Pieces, then the trajectory."""
        while True:
            piece = await self._arrived.get()
            yield piece
            if isinstance(piece, Trajectory):
                return


def create_app(policy: LivePolicy, model_name: str) -> FastAPI:
    """The application. Closing it closes the policy."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(policy.close)

    app = FastAPI(title="afm", docs_url=None, redoc_url=None, lifespan=lifespan)

    @app.exception_handler(HTTPException)
    async def unknown_route(request: Request, error: HTTPException) -> JSONResponse:
        text = (
            f"{request.method} {request.url.path}: {error.detail}; there are POST /v1/chat/completions, GET /v1/models"
        )
        return _error(error.status_code, f"{text} and GET /health")

    @app.get("/health")
    async def health() -> JSONResponse:
        if policy.failure:
            return _error(503, policy.failure)
        return JSONResponse({"status": "ok", "model": model_name, "policy_version": policy.policy_version})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entry = {"id": model_name, "object": "model", "created": 0, "owned_by": "afm"}
        return {"object": "list", "data": [entry]}

    @app.post("/v1/chat/completions")
    async def complete(request: Request) -> Any:
        try:
            asked = _Request.model_validate_json(await request.body())
            if asked.model not in ("", model_name):
                text = f"no model {asked.model!r}; this server has {model_name!r}"
                return _error(404, text, parameter="model", code="model_not_found")
            if policy.waiting >= _WAITING_LIMIT:
                return _error(503, "too many questions are waiting", {"Retry-After": "10"})
            answering = _Answering(policy, asked)
        except ValidationError as error:
            return _refusal(error)
        except ValueError as error:
            return _error(400, str(error), parameter="messages")
        except RuntimeError as error:
            return _error(503, str(error))
        if asked.stream:
            return StreamingResponse(_stream(answering, asked, model_name), media_type="text/event-stream")
        return await _whole(answering, request, model_name)

    return app


def question_of(messages: list[dict[str, Any]]) -> str:
    """The question that a conversation asks. Raises ValueError if it does not end with a user's text."""
    turns = [(str(one.get("role")), _text(one.get("content"))) for one in messages if one.get("role") != "system"]
    if not turns or turns[-1][0] != "user" or not turns[-1][1].strip():
        raise ValueError("the last message must be a user's text")
    earlier = "".join(f"{role}: {text}\n" for role, text in turns[:-1])
    return f"{earlier}{turns[-1][1].strip()}"


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


async def _whole(answering: _Answering, request: Request, model_name: str) -> JSONResponse:
    """Wait for the end; a caller that hangs up cancels the episode."""
    watcher = asyncio.create_task(_cancel_when_gone(request, answering.ticket))
    try:
        trajectory = [piece async for piece in answering.pieces()][-1]
    finally:
        watcher.cancel()
    assert isinstance(trajectory, Trajectory)
    if trajectory.status in SCORING_FAILURES:
        return _error(502, _failure(trajectory))
    message = {
        "role": "assistant",
        "content": trajectory.answer or "",
        "reasoning_content": render_trajectory(trajectory),
    }
    body = _frame(trajectory.id, "chat.completion", model_name)
    body["choices"] = [{"index": 0, "message": message, "finish_reason": _finish_reason(trajectory)}]
    return JSONResponse({**body, "usage": _usage(trajectory), "afm": _report(trajectory)})


async def _cancel_when_gone(request: Request, ticket: Ticket) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.5)
    ticket.cancel()


async def _stream(answering: _Answering, asked: _Request, model_name: str) -> AsyncIterator[str]:
    """Server-sent events. A caller that hangs up closes this generator, which cancels the episode."""
    name = answering.ticket.episode.id

    def event(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        body = _frame(name, "chat.completion.chunk", model_name)
        body["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return f"data: {json.dumps({**body, **more}, ensure_ascii=False)}\n\n"

    try:
        yield event({"role": "assistant"})
        async for piece in answering.pieces():
            if isinstance(piece, Piece):
                yield event({"reasoning_content": piece.text})
                continue
            if piece.status in SCORING_FAILURES:
                yield f"data: {json.dumps({'error': {'message': _failure(piece), 'type': 'episode_failed'}})}\n\n"
            else:
                yield event({"content": piece.answer or ""})
                yield event({}, _finish_reason(piece), afm=_report(piece))
            if (asked.stream_options or {}).get("include_usage"):
                body = {**_frame(name, "chat.completion.chunk", model_name), "choices": [], "usage": _usage(piece)}
                yield f"data: {json.dumps(body)}\n\n"
        yield "data: [DONE]\n\n"
    finally:
        answering.ticket.cancel()


def _frame(name: str, kind: str, model_name: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{name}", "object": kind, "created": int(time.time()), "model": model_name}


def _finish_reason(trajectory: Trajectory) -> str:
    return "length" if trajectory.status in _OUT_OF_BUDGET else "stop"


def _usage(trajectory: Trajectory) -> dict[str, int]:
    usage = trajectory.usage
    completion = usage.sampled_tokens + usage.observation_tokens
    total = usage.prompt_tokens + completion
    return {"prompt_tokens": usage.prompt_tokens, "completion_tokens": completion, "total_tokens": total}


def _report(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "status": trajectory.status.value,
        "turns": trajectory.usage.turns,
        "tool_calls": trajectory.usage.tool_calls,
        "violations": list(trajectory.violations),
    }


def _failure(trajectory: Trajectory) -> str:
    return f"{trajectory.status.value}: {trajectory.provenance.get('error', '')}"


def _refusal(error: ValidationError) -> JSONResponse:
    """A 400 that names the first wrong field and what belongs there."""
    first = error.errors()[0]
    field = str(first["loc"][0]) if first["loc"] else None
    if first["type"] == "json_invalid":
        return _error(400, f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    if field is None:
        return _error(400, "the body must be a JSON object with `messages`")
    given = "it is missing" if first["type"] == "missing" else f"got {_short(first['input'])}"
    return _error(400, f"{field}: expected {_EXPECTED[field]}; {given}", parameter=field)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _error(
    status: int,
    message: str,
    headers: dict[str, str] | None = None,
    *,
    parameter: str | None = None,
    code: str | None = None,
) -> JSONResponse:
    """An error in the form that OpenAI's clients read: message, type, the parameter at fault and a code."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"message": message, "type": kind, "param": parameter, "code": code or status}
    return JSONResponse({"error": body}, status, headers=headers)
