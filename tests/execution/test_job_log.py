"""The log of a Ray job: events told from lines, however the log is cut, repeated or imitated."""

import os
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from afm_core.execution import Event, Progress
from afm_core.execution.events import encode
from afm_core.execution.job_log import JobLog
from afm_core.execution.worker import EventWriter

MARK = "@afm-0123"
EVENTS = [Progress(done=number, total=3, message="ß") for number in range(3)]
LOG = "loading\n" + "".join(f"\n{MARK} {encode(event)}\nline {event.done}\n" for event in EVENTS)


def reader(path: Path) -> tuple[JobLog, list[Event], list[str]]:
    events: list[Event] = []
    lines: list[str] = []
    return JobLog(MARK, path, events.append, lines.append), events, lines


@given(cuts=st.lists(st.integers(0, len(LOG)), max_size=6), again=st.integers(0, len(LOG)))
def test_cut_anywhere_and_read_again_from_the_beginning_nothing_is_lost_or_told_twice(
    tmp_path_factory, cuts: list[int], again: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "stage.log"
    log, events, lines = reader(path)
    edges = sorted({0, *cuts, len(LOG)})
    for start, end in pairwise(edges):
        log.take(start, LOG[start:end])
        log.take(0, LOG[: min(again, end)])
    log.take(0, LOG)
    log.close()
    assert events == EVENTS
    assert lines == ["loading", "line 0", "line 1", "line 2"]
    assert path.read_text().splitlines() == lines
    assert log.last == EVENTS[-1]


def test_what_only_looks_like_an_event_is_a_line(tmp_path: Path) -> None:
    log, events, lines = reader(tmp_path / "stage.log")
    forged = [encode(EVENTS[0]), f"@afm-9999 {encode(EVENTS[0])}", f"{MARK} {{not json", f" {MARK} {encode(EVENTS[0])}"]
    log.take(0, "\n".join(forged))
    log.close()
    assert events == []
    assert lines == forged


def test_a_writer_with_a_mark_is_understood_in_the_middle_of_anothers_line(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    descriptor = os.open(raw, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    write = EventWriter(descriptor, MARK)
    os.write(descriptor, b"step 1 of 9 \r")
    for event in EVENTS:
        write(event)
    os.close(descriptor)
    log, events, lines = reader(tmp_path / "stage.log")
    log.take(0, raw.read_text())
    assert events == EVENTS
    assert [line.strip() for line in lines] == ["step 1 of 9"]
