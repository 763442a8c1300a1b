"""A rollout played again from its recording alone: no server, no tool. Equal code gives an equal recording.

It shows that a record is whole, and it is how tests hold the team to what it did. A request that the recording does not
hold means that code or settings have changed since: ReplayDiverged names the first one.
"""

from collections import defaultdict, deque

from afm_core.config import AgentConfig, TeamConfig
from afm_core.data import Status, Tag
from afm_core.engines.backbone import ChatRequest, Exchange
from afm_core.teacher.team.record import TeamRecording, ToolCard
from afm_core.teacher.team.team import Rollout, Setting, solve
from afm_core.tools.protocol import Tool, ToolResult, ToolStatus


class ReplayDiverged(RuntimeError):
    """The team asks for something that its recording does not hold."""


async def replay(recording: TeamRecording, config: TeamConfig, agent: AgentConfig) -> TeamRecording:
    """Play the rollout of a recording again, under the settings it was made with.

    Raises:
        ReplayDiverged: the settings or the code are others.
    """
    tools = {card.tag: _RecordedTool(card, recording) for card in recording.tools}
    setting = Setting(_RecordedBackbone(recording), config, agent, dict[Tag, Tool](tools))
    rollout = Rollout(recording.rollout, recording.model, recording.seed, recording.tips)
    replayed = await solve(recording.question, setting, rollout)
    missing = next((tool.missing for tool in tools.values() if tool.missing), "")
    if missing:
        raise ReplayDiverged(f"the recording holds no call {missing}")
    return replayed


class _RecordedBackbone:
    """Answers each request with the exchange that the recording holds for it."""

    def __init__(self, recording: TeamRecording) -> None:
        self._cut = recording.status is Status.TIMEOUT
        self._exchanges: defaultdict[str, deque[Exchange]] = defaultdict(deque)
        for event in recording.events:
            if event.exchange is not None:
                self._exchanges[event.exchange.request.digest()].append(event.exchange)

    async def complete(self, request: ChatRequest) -> Exchange:
        """The recorded exchange. Where the clock ended the rollout, it ends in the same place."""
        recorded = self._exchanges[request.digest()]
        if recorded:
            return recorded.popleft()
        if self._cut:
            raise TimeoutError
        raise ReplayDiverged(
            f"the recording holds no such request: {request.messages[0].content[:60]!r}, ..., "
            f"{request.messages[-1].content[:200]!r}"
        )


class _RecordedTool:
    """Gives the recorded results; the same call made several times gets them in the recording's order.

    `missing`: a call that was not recorded. A tool's failure ends a rollout and raises nothing, so it is told here.
    """

    def __init__(self, card: ToolCard, recording: TeamRecording) -> None:
        self.name, self.description = card.name, card.description
        self.missing = ""
        self._results: defaultdict[str, deque[ToolResult]] = defaultdict(deque)
        for event in recording.events:
            call = event.call
            if call is not None and call.tag is card.tag and call.argument is not None:
                self._results[call.argument].append(ToolResult(call.status, call.observation, seconds=call.seconds))

    def call(self, argument: str) -> ToolResult:
        """The recorded result."""
        recorded = self._results[argument]
        if recorded:
            return recorded.popleft()
        self.missing = f"{self.name}({argument[:200]!r})"
        return ToolResult(ToolStatus.INFRA_ERROR, "not recorded")
