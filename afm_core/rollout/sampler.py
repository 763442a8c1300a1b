"""What RL needs of rollouts: start episodes, collect those that ended, take new weights, prove what is loaded.

Two samplers implement it: afm_core.rollout.local (one engine in this process) and afm_core.rollout.ray_workers (an
engine in each of several Ray actors).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from afm_core.data import AgentTask, Trajectory
from afm_core.engines import Generation
from afm_core.rollout.episode import Mode


@dataclass(frozen=True)
class EpisodeRequest:
    """One episode to run. `key` is unique among those in flight and comes back with the trajectory.

    sample and seed give the episode its randomness (see afm_core.rollout.episode.seed_of); temperature 0 is greedy.
    """

    key: str
    task: AgentTask
    sample: int = 0
    seed: int = 0
    temperature: float = 1.0
    mode: Mode = Mode.AGENT


class Weights(Protocol):
    """The policy's present weights, in the two forms that samplers take."""

    @property
    def version(self) -> str:
        """Digest of the weights (64 hex digits)."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Tensors of the causal LM by name, in this process. They may change after the call that was given them."""
        ...

    def directory(self) -> Path:
        """A model directory in Hugging Face layout that every machine can read; written at the first call."""
        ...


class Sampler(Protocol):
    """Runs episodes. Not thread-safe. Trajectories carry, a segment, the version of the policy that sampled it."""

    def load(self, weights: Weights) -> str:
        """Replace the weights everywhere and empty every cache; returns the digest of what is loaded now.

        Episodes in flight pause at the end of their running turn and go on with the new weights.
        """
        ...

    def start(self, requests: Sequence[EpisodeRequest]) -> None:
        """Begin episodes, in order."""
        ...

    def collect(self, timeout: float) -> list[tuple[str, Trajectory]]:
        """(key, trajectory) of episodes that ended, waiting up to `timeout` seconds for the first.

        Raises RolloutStalled if nothing advances for `rollout.stall_seconds`, and RolloutWorkerDied when workers die
        more often than they may.
        """
        ...

    def pending(self) -> int:
        """Episodes that were started and not yet collected."""
        ...

    def probe(self, prompt_ids: Sequence[int], tokens: int) -> list[Generation]:
        """Greedy continuation of a fixed prompt by every engine, with its log-probabilities (temperature 1)."""
        ...

    def rest(self) -> None:
        """Free what is only needed for sampling (caches, packed weights) until the next `load`. Nothing pending."""
        ...

    def close(self) -> None:
        """End everything."""
        ...
