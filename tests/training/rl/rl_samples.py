"""Trajectories, tasks and fakes for the tests of the RL loop."""

from collections.abc import Callable, Sequence

from afm_core.data import AgentTask, Origin, Segment, Split, Status, Trajectory, Usage
from afm_core.engines import Generation
from afm_core.rollout.sampler import EpisodeRequest, Weights


def task(number: int, split: Split = Split.TRAIN) -> AgentTask:
    """A task of its own."""
    return AgentTask.create(f"What is {number}?", (str(number),), split=split)


def episode(
    request: EpisodeRequest,
    reward: float | None,
    version: str = "v0",
    status: Status = Status.COMPLETED,
    error: str = "",
) -> Trajectory:
    """An ended episode of three sampled tokens."""
    return Trajectory(
        id=f"{request.key}-{request.seed}",
        task_id=request.task.id,
        question=request.task.question,
        answer="x",
        grammar="web",
        source=version,
        segments=(
            Segment(origin=Origin.PROMPT, text="q", token_ids=(1, 2)),
            Segment(
                origin=Origin.SAMPLED,
                text="<answer>x</answer>",
                token_ids=(3, 4, 5),
                logprobs=(-0.5, -0.25, -0.125),
                policy_version=version,
            ),
        ),
        status=status,
        reward=reward,
        usage=Usage(turns=1, sampled_tokens=3, prompt_tokens=2),
        provenance={"error": error} if error else {},
    )


class FakeSampler:
    """Ends episodes as `outcome` says, `slow` keys only after `release`. Keeps what it was asked for."""

    def __init__(self, outcome: Callable[[EpisodeRequest], Trajectory]) -> None:
        self.outcome = outcome
        self.version = "v0"
        self.started: list[EpisodeRequest] = []
        self.held: Callable[[EpisodeRequest], bool] = lambda request: False
        self.waiting: list[EpisodeRequest] = []

    def load(self, weights: Weights) -> str:
        self.version = weights.version
        return weights.version

    def start(self, requests: Sequence[EpisodeRequest]) -> None:
        self.started += requests
        self.waiting += requests

    def collect(self, timeout: float) -> list[tuple[str, Trajectory]]:
        ended = [request for request in self.waiting if not self.held(request)]
        self.waiting = [request for request in self.waiting if self.held(request)]
        return [(request.key, self.outcome(request)) for request in ended]

    def pending(self) -> int:
        return len(self.waiting)

    def probe(self, prompt_ids: Sequence[int], tokens: int) -> list[Generation]:
        return []

    def rest(self) -> None:
        pass

    def close(self) -> None:
        pass
