"""Checkpoints on their way from the training workers into the store."""

import logging
import shutil
from collections.abc import Callable
from typing import Any

from afm_core.store import StageContext
from afm_core.training.channel import Channel
from afm_core.training.checkpoints import checkpoint_name, checkpoint_step, read_progress, superseded

_LOG = logging.getLogger(__name__)


class CheckpointKeeper:
    """Moves checkpoints from the channel into the store and forgets those that nothing keeps."""

    _PREFIX = "checkpoint/"

    def __init__(self, context: StageContext, channel: Channel, keep_last: int, keep_best: int = 0) -> None:
        self._context = context
        self._channel = channel
        self._keep_last = keep_last
        self._keep_best = keep_best
        self._scores: dict[int, float] = {}

    def newest(self, loss_of: Callable[[Any], float]) -> str | None:
        """The path of the newest readable sealed checkpoint, None to start afresh.

        loss_of: a checkpoint's mean training loss, out of its progress.
        """
        sealed = self._context.sealed(self._PREFIX)
        found: str | None = None
        for name, path in sealed.items():
            try:
                progress = read_progress(path)
            except ValueError as error:
                _LOG.warning("a checkpoint is passed over: %s", error)
                continue
            self._scores[checkpoint_step(name)] = loss_of(progress)
            found = str(path)
        if found:
            _LOG.info("resuming after step %d", max(self._scores))
        return found

    def take(self, name: str, loss: float) -> None:
        """Seal the checkpoint that the workers left, remove their copy, forget superseded ones."""
        directory = self._channel.checkpoints / name
        self._context.seal(f"{self._PREFIX}{name}", directory)
        shutil.rmtree(directory)
        self._scores[checkpoint_step(name)] = loss
        for step in superseded(self._scores, self._keep_last, self._keep_best):
            self._context.unseal(f"{self._PREFIX}{checkpoint_name(step)}")
            del self._scores[step]
