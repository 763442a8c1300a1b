"""What task sets that grow say of themselves: the additions of a pool's version, and which tasks of a set are new."""

import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict

ADDED_FILE = "added.parquet"
"""In a version of a task pool: the tasks that this version added."""
NEW_TASKS_FILE = "new.json"
"""In a profile's tasks joined with a pool: see NewTasks."""


class NewTasks(BaseModel):
    """Which tasks of a set are new: those that version `version` of the pool has and version `known` has not.

    `known` 0: all of the pool is new. `tasks`: their ids, sorted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    pool: str
    version: int
    known: int
    tasks: tuple[str, ...]

    def write(self, directory: Path) -> None:
        """Write NEW_TASKS_FILE."""
        text = json.dumps(self.model_dump(mode="json"), indent=2, sort_keys=True)
        (directory / NEW_TASKS_FILE).write_text(text + "\n", encoding="utf-8")


def new_tasks(directory: Path) -> NewTasks | None:
    """The NewTasks of a task set's directory; None for a set that never grew. Raises ValueError if damaged."""
    path = directory / NEW_TASKS_FILE
    return NewTasks.model_validate_json(path.read_bytes()) if path.exists() else None
