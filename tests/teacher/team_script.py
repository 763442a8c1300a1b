"""A scripted language model: plays every role of a team from what it is shown, as a good model would.

`Script` is a Backbone. Its methods can be replaced one by one; each takes the request and gives the reply's content, a
dict (sent as JSON), a list of (tool, arguments) calls, a status to end with, or (status, one of these).
"""

import json
import re
from collections import Counter

from afm_core.engines.backbone import (
    Attempt,
    CallStatus,
    ChatReply,
    ChatRequest,
    ChatRole,
    Exchange,
    Tokens,
    ToolCall,
)

ROLES = {
    "You plan the work of a team": "plan",
    "You work on one sub-task": "turn",
    "You judge how well": "review",
    "You keep a team's notes": "summarise",
    "You answer a question from": "suggest",
    "You check a proposed answer": "check",
    "You choose the best": "rank",
    "You learn from a run": "tip",
}


def role_of(request: ChatRequest) -> str:
    """Which script a request is for."""
    text = request.messages[0].content
    role = next(role for start, role in ROLES.items() if text.startswith(start))
    return "revise" if role == "plan" and "The plan below was worked on" in text else role


def goal_of(request: ChatRequest) -> str:
    return re.search(r"^Your sub-task: (.*)$", request.messages[1].content, re.MULTILINE).group(1)


class Script:
    """Answers `What is the R of S?` over the documents of the tests: asks for S and R, reports the last result."""

    def __init__(self, **replaced):
        self.requests: list[ChatRequest] = []
        self.counts: Counter[str] = Counter()
        self.replaced = replaced

    async def complete(self, request):
        self.requests.append(request)
        role = role_of(request)
        self.counts[role] += 1
        said = self.replaced.get(role, getattr(self, role))(request)
        return exchange(request, said)

    def plan(self, request):
        return {
            "thought": "One look is enough.",
            "facts": ["It is about Kenya."],
            "subtasks": [{"id": 1, "goal": "find the capital of Kenya"}],
        }

    def revise(self, request):
        return {"assessment": "Not found yet.", "grade": "fair", **self.plan(request)}

    def turn(self, request):
        observed = [one.content for one in request.messages if one.role is ChatRole.TOOL]
        if not observed:
            return [("web_search", {"query": goal_of(request).removeprefix("find the "), "thought": "Look it up."})]
        return f"The result is: {observed[-1].splitlines()[0]}"

    def review(self, request):
        return {"score": 9, "grade": "good", "assessment": "Supported by the result.", "lesson": ""}

    def summarise(self, request):
        return {"summary": "All of it, briefly."}

    def suggest(self, request):
        return {"thought": "The notes say so.", "answer": "Nairobi"}

    def check(self, request):
        return {"check": "The notes state it.", "score": 4}

    def rank(self, request):
        return {"reason": "It is the clearest.", "best": 1}

    def tip(self, request):
        return {"tip": "Look for the capital first."}


def exchange(request, said):
    """An exchange as a pool would give it."""
    status = CallStatus.OK
    calls, content, finish = (), "", "stop"
    if isinstance(said, tuple):
        status, said = said
    if isinstance(said, CallStatus):
        status = said
    elif isinstance(said, list):
        finish = "tool_calls"
        calls = tuple(
            ToolCall(id=f"c{number}", name=name, arguments=given if isinstance(given, str) else json.dumps(given))
            for number, (name, given) in enumerate(said)
        )
    else:
        content = said if isinstance(said, str) else json.dumps(said)
    tokens = Tokens(prompt=sum(len(one.content) for one in request.messages) // 4, completion=20)
    usable = status in {CallStatus.OK, CallStatus.TRUNCATED}
    reply = ChatReply(content=content, tool_calls=calls, finish_reason=finish, tokens=tokens) if usable else None
    attempt = Attempt(endpoint="scripted", status=status, seconds=0.5, detail="" if usable else "scripted failure")
    return Exchange(request=request, status=status, reply=reply, attempts=(attempt,))
