"""Stages that a command runs as a run of its own, outside a flow: their progress, their records, the document."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from afm_cli.common import emit
from afm_cli.failure import failure_document

if TYPE_CHECKING:
    from afm_core.execution import RunSession, StageRecord
    from afm_core.store import ArtifactRef


Document = dict[str, Any]


def as_run(make: Callable[[str], Document], show: Callable[[Document], None], as_json: bool) -> None:
    """Make the document of a new run (of that id), and print it as JSON or by `show`; a failure has a document too."""
    from afm_core.execution import new_run_id

    run_id = new_run_id()
    with failure_document(run_id, as_json):
        document = make(run_id)
    if as_json:
        emit(document)
    else:
        show(document)


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
