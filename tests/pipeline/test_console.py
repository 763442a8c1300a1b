"""The lines of a run, and a reader of them that is gone."""

import os
import sys

import pytest

from tasks.console import Console


def test_a_line_a_stage_and_progress_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.progress("teach", 96, 96, "tasks demonstrated", 0.0)
    console.note("sft", "Ray job a-job")
    assert capsys.readouterr().err.splitlines() == [
        "  teach                  96/96     0 s left  tasks demonstrated",
        "  sft                Ray job a-job",
    ]


def test_a_run_whose_worker_was_killed_goes_on_without_its_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    console = Console()
    console.progress("teach", 96, 96, "tasks demonstrated")
    console.note("sft", "Ray job a-job")
    with pytest.raises(BrokenPipeError):
        stream.close()
