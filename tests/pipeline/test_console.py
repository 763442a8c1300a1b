"""The lines of a run, and a reader of them that is gone."""

import logging
import os
import sys
from contextlib import suppress

import pytest
from prefect.logging.handlers import PrefectConsoleHandler

from tasks.console import Console, outlive_reader


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


def test_a_log_line_without_a_reader_does_not_end_the_run() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    handler = PrefectConsoleHandler(stream)
    logger = logging.getLogger("a-run-without-a-worker")
    logger.addHandler(handler)
    try:
        outlive_reader()  # without it the next line ends the process
        logger.warning("a first line")
        logger.warning("a second one")
    finally:
        logger.removeHandler(handler)
        with suppress(BrokenPipeError):
            stream.close()
