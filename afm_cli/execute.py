"""A stage that a command runs by itself, outside a flow: its progress in the terminal, its record as the result."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from afm_core.execution import RunSession, StageRecord
    from afm_core.store import ArtifactRef


def execute(session: "RunSession", name: str, inputs: "Mapping[str, ArtifactRef]") -> "StageRecord":
    """Run a stage (or find it in the store) and show it. Raises ConfigError or StageFailed."""
    from afm_core.execution import Event, Progress, Waiting
    from tasks.console import Console

    console = Console.current()

    def show(stage: str, event: Event) -> None:
        if isinstance(event, Progress):
            console.progress(stage, event.done, event.total, event.message, event.seconds_left)
        elif isinstance(event, Waiting):
            console.note(stage, f"waiting for {event.holder}")

    record = session.execute(name, inputs, on_event=show)
    console.finished(record)
    return record
