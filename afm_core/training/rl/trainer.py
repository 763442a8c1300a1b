"""All ranks of the trainer as one object on rank 0, so that the loop reads as if there were one process.

Rank 0 calls a method; the command is announced to the other ranks, which sit in `follow`, and every rank then does the
same collective work. Commands go over a gloo group of its own whose time-out is a week: other ranks wait there for as
long as rank 0 samples episodes.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from afm_core.config import RlConfig
from afm_core.training.checkpoints import write_checkpoint
from afm_core.training.deepspeed_engine import DeepSpeedEngine
from afm_core.training.lora import merge
from afm_core.training.ranks import barrier
from afm_core.training.rl.experience import ExperienceRow, read_experience
from afm_core.training.rl.records import RlState
from afm_core.training.rl.update import Reference, UpdateRecord, score, update

_WEEK = timedelta(days=7)


class Link(Protocol):
    """Carries a message from rank 0 to the others."""

    def share(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """Rank 0 gives a message, the others None; all get rank 0's."""
        ...


class GlooLink:
    """The link over torch.distributed; nothing is sent in a world of one."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=_WEEK) if dist.get_world_size() > 1 else None

    def share(self, message: dict[str, Any] | None) -> dict[str, Any]:
        """See Link."""
        carried = [message]
        if self._group is not None:
            dist.broadcast_object_list(carried, src=0, group=self._group)
        assert carried[0] is not None, "rank 0 must give a message"
        return carried[0]


class Trainer:
    """The policy in training. Every method is called on rank 0 only; the other ranks call `follow`."""

    def __init__(
        self, engine: DeepSpeedEngine, config: RlConfig, link: Link, reference: Reference | None = None
    ) -> None:
        self.rank = engine.rank
        self._engine = engine
        self._config = config
        self._link = link
        self._reference = reference

    def update(self, directory: Path, step: int) -> UpdateRecord:
        """Train on the experience in a step directory that all ranks can read; `step` counts from 1."""
        record: UpdateRecord = self._everywhere("update", directory=str(directory), step=step)
        return record

    def score(self, ids: Sequence[int], prompt_length: int) -> list[float]:
        """The policy's log-probabilities (nats, temperature 1) of the ids after the prompt."""
        values: list[float] = self._everywhere("score", ids=list(ids), prompt_length=prompt_length)
        return values

    def state(self) -> Mapping[str, Tensor]:
        """The weights of the causal LM by name, adapters merged. They change with the next update."""
        weights: Mapping[str, Tensor] = self._everywhere("state")
        return weights

    def checkpoint(self, root: Path, state: RlState) -> Path:
        """Write weights, optimizer and the loop's state as a checkpoint below `root`; returns its path."""
        path: Path = self._everywhere("checkpoint", root=str(root), step=state.step, progress=state.to_json())
        return path

    def end(self) -> None:
        """Let the other ranks go."""
        self._link.share({"command": "end"})

    def follow(self) -> None:
        """What the other ranks do until rank 0 says `end`."""
        while (message := self._link.share(None))["command"] != "end":
            arguments = {name: value for name, value in message.items() if name != "command"}
            self._here(message["command"], **arguments)

    def _everywhere(self, command: str, **arguments: Any) -> Any:
        self._link.share({"command": command, **arguments})
        return self._here(command, **arguments)

    def _here(self, command: str, **arguments: Any) -> Any:
        return getattr(self, f"_{command}")(**arguments)

    def _update(self, directory: str, step: int) -> UpdateRecord:
        return update(self._engine, read_experience(Path(directory)), self._config, step, self._reference)

    def _score(self, ids: list[int], prompt_length: int) -> list[float]:
        learned = [0] * prompt_length + [1] * (len(ids) - prompt_length)
        nothing = (0.0,) * len(ids)
        row = ExperienceRow("probe", 0, tuple(ids), tuple(learned), nothing, nothing)
        config = self._config.model_copy(update={"temperature": 1.0})
        return list(score(self._engine, [row], config)[0])

    def _state(self) -> Mapping[str, Tensor]:
        state = self._engine.model_state()
        if state is None:
            return {}
        return merge(state, self._config.lora) if self._config.lora is not None else state

    def _checkpoint(self, root: str, step: int, progress: dict[str, Any]) -> Path:
        return write_checkpoint(Path(root), step, progress, self._engine.save, self.rank, barrier)
