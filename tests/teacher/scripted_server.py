"""An OpenAI-compatible server that plays a team by script and fails by plan: `python scripted_server.py '{...}'`.

It prints its port and serves until it is killed; with $VLLM_API_KEY only those who send it. GET /stats tells what it
saw. Options (JSON): `seconds` of service, `seed`, and shares of requests that meet a fault of the transport
(`rate_limited` with `retry_after`, `error`, `slow` by `slowness`, `broken` off in the middle, `malformed`) or of the
reply (`garbage`, `cut` at its length). Faults of the transport follow from how many requests there were, faults of the
reply from the request itself, so that a request asked again gets the same reply.
"""

import argparse
import asyncio
import json
import os
import random
import sys
from collections import Counter

from team_script import Script, exchange, role_of

from afm_core.engines.backbone import CallStatus, ChatRequest, Message, Sampling, ToolCall, ToolSpec

TRANSPORT = ("rate_limited", "error", "slow", "broken", "malformed")
REPLY = ("garbage", "cut")
REASONS = {200: "OK", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests", 500: "Internal Server Error"}


def read_request(body):
    """The request that a body was made from."""
    messages = []
    for one in body["messages"]:
        calls = tuple(
            ToolCall(id=call["id"], **{name: call["function"][name] for name in ("name", "arguments")})
            for call in one.get("tool_calls", ())
        )
        called = one.get("tool_call_id")
        messages.append(Message(role=one["role"], content=one["content"], tool_calls=calls, tool_call_id=called))
    return ChatRequest(
        model=body["model"],
        messages=tuple(messages),
        tools=tuple(ToolSpec(**one["function"]) for one in body.get("tools", ())),
        sampling=Sampling(**{name: body[name] for name in Sampling.model_fields}),
    )


class Server:
    """The state of one server."""

    def __init__(self, options):
        self.options = {"seconds": 0.0, "seed": 0, "retry_after": 0.1, "slowness": 5, **options}
        self.script = Script()
        self.requests = 0
        self.faults = Counter()
        self.answered = []
        self.service = 0.0
        self.key = os.environ.get("VLLM_API_KEY", "").lower()

    def draw(self, kinds, key):
        """The fault of a request, None for none."""
        number = random.Random(f"{self.options['seed']}:{key}").random()
        for kind in kinds:
            number -= self.options.get(kind, 0.0)
            if number < 0:
                self.faults[kind] += 1
                return kind
        return None

    async def serve(self, reader, writer):
        try:
            while await self.one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def one(self, reader, writer):
        """Answer one request of a connection; False to close it."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        length = next((int(line[15:]) for line in head.split("\r\n") if line.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if path == "/health":
            return await send(writer, 200, {})
        if self.key and f"authorization: bearer {self.key}" not in head.lower():
            return await send(writer, 401, {"error": "wrong key"})
        if method == "GET" and path == "/stats":
            fields = ("requests", "faults", "answered", "service")
            return await send(writer, 200, {name: getattr(self, name) for name in fields})
        if path != "/v1/chat/completions":
            return await send(writer, 404, {"error": path})
        self.requests += 1
        return await self.answer(json.loads(body), writer)

    async def answer(self, body, writer):
        fault = self.draw(TRANSPORT, self.requests)
        seconds = self.options["seconds"] * (self.options["slowness"] if fault == "slow" else 1)
        if fault == "rate_limited":
            return await send(writer, 429, {}, {"Retry-After": str(self.options["retry_after"])})
        self.service += seconds
        await asyncio.sleep(seconds)
        if fault == "error":
            return await send(writer, 500, {"error": "scripted"})
        reply = await self.reply(read_request(body))
        text = json.dumps(reply)
        if fault == "malformed":
            return await send(writer, 200, text[: len(text) // 2])
        if fault == "broken":
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(text)}\r\n\r\n{text[:40]}".encode())
            await writer.drain()
            return False
        self.answered.append(body["seed"])
        return await send(writer, 200, reply)

    async def reply(self, request):
        """What the script says, with the faults of the reply's own."""
        fault = self.draw(REPLY, request.digest())
        role = role_of(request)
        said = self.script.replaced.get(role, getattr(self.script, role))(request)
        if fault == "garbage":
            said = "I would rather not."
        read = exchange(request, (CallStatus.OK, said)).reply
        message = {"role": "assistant", "content": read.content or None}
        if read.tool_calls:
            calls = [one.model_dump(include={"name", "arguments"}) for one in read.tool_calls]
            message["tool_calls"] = [
                {"id": one.id, "type": "function", "function": call}
                for one, call in zip(read.tool_calls, calls, strict=True)
            ]
        finish = "length" if fault == "cut" else "stop"
        usage = {"prompt_tokens": read.tokens.prompt, "completion_tokens": read.tokens.completion}
        return {
            "model": request.model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": usage,
        }


async def send(writer, status, content, headers=()):
    text = content if isinstance(content, str) else json.dumps(content)
    body = text.encode()
    lines = [f"HTTP/1.1 {status} {REASONS[status]}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in dict(headers).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    await writer.drain()
    return True


async def main(options, host, port):
    server = await asyncio.start_server(Server(options).serve, host, port)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("options", nargs="?", default="{}", type=json.loads)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", default=0, type=int)
    asyncio.run(main(**vars(parser.parse_args())))
