"""The directory through which training workers and the stage process talk.

One writer (rank 0) appends events as JSON lines and leaves checkpoint directories and the model; one reader (the
stage) follows the lines, seals and removes the checkpoints, and asks for a stop by creating a file. On a cluster of
several machines the directory must lie on a file system that all of them share.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_EVENTS = "events.jsonl"
_STOP = "stop"


@dataclass(frozen=True)
class Channel:
    """Paths and messages. Everything lies below `directory`."""

    directory: Path

    @property
    def rows(self) -> Path:
        """The training rows, written by the stage."""
        return self.directory / "rows.parquet"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints that are whole and not yet sealed."""
        return self.directory / "checkpoints"

    @property
    def model(self) -> Path:
        """The final model, whole once the `finished` event is there."""
        return self.directory / "model"

    def create(self) -> None:
        """Make the folders (stage)."""
        self.checkpoints.mkdir(parents=True, exist_ok=True)
        (self.directory / _EVENTS).touch()

    def send(self, kind: str, **values: Any) -> None:
        """Append one event (rank 0)."""
        with (self.directory / _EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **values}) + "\n")

    def ask_to_stop(self) -> None:
        """Ask the workers to save and end (stage)."""
        (self.directory / _STOP).touch()

    def stop_asked(self) -> bool:
        """Whether a stop was asked for (workers)."""
        return (self.directory / _STOP).exists()

    def reader(self) -> "EventReader":
        """A reader from the first event on (stage)."""
        return EventReader(self.directory / _EVENTS)


class EventReader:
    """Follows the events; a line that is still being written is left for the next call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The events that came since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield json.loads(line)
