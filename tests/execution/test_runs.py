"""Run records: saved whole, found by prefix, damaged ones told."""

from dataclasses import replace
from pathlib import Path

import pytest

from afm_core.config import ConfigError
from afm_core.execution import RunDirectory, RunRecord, RunStatus, find_run, list_runs
from afm_core.execution.runs import new_run_id, now
from afm_core.store import Process, this_process


def _saved(home: Path, run_id: str) -> RunRecord:
    record = RunRecord(run_id=run_id, profile="smoke", started=now(), pid=1, status=RunStatus.COMPLETED)
    RunDirectory(home, run_id).create().save(record)
    return record


def test_records_are_listed_newest_first_and_damaged_ones_left_out(tmp_path: Path) -> None:
    old, new = _saved(tmp_path, "20260101-000000-aaaa"), _saved(tmp_path, "20260102-000000-bbbb")
    (RunDirectory(tmp_path, "20260103-000000-cccc").create().path / "run.json").write_text("{half")
    assert list_runs(tmp_path) == [new, old]
    with pytest.raises(ConfigError, match="damaged"):
        find_run(tmp_path, "20260103").load()


def test_a_run_is_found_by_unique_prefix_or_last(tmp_path: Path) -> None:
    _saved(tmp_path, "20260101-000000-aaaa")
    new = _saved(tmp_path, "20260102-000000-bbbb")
    assert find_run(tmp_path, "last").load() == new
    assert find_run(tmp_path, "20260102").run_id == new.run_id
    for name in ("2026", "absent"):
        with pytest.raises(ConfigError, match="afm runs ls"):
            find_run(tmp_path, name)


def _running(home: Path, process: Process | None) -> RunStatus:
    record = RunRecord(run_id="r", profile="smoke", started=now(), pid=1, process=process)
    RunDirectory(home, "r").create().save(record)
    before = (home / "runs" / "r" / "run.json").read_bytes()
    status = RunDirectory(home, "r").load().status
    assert list_runs(home)[0].status is status
    assert (home / "runs" / "r" / "run.json").read_bytes() == before
    return status


def test_a_run_whose_process_is_gone_has_died_and_one_that_cannot_be_seen_has_not(tmp_path: Path) -> None:
    here = this_process()
    assert _running(tmp_path, here) is RunStatus.RUNNING
    assert _running(tmp_path, replace(here, started="0")) is RunStatus.DIED
    assert _running(tmp_path, replace(here, pid=2**22 + 1)) is RunStatus.DIED
    assert _running(tmp_path, replace(here, boot="before the last reboot", machine=here.machine)) is (
        RunStatus.DIED if here.machine else RunStatus.RUNNING
    )
    assert _running(tmp_path, replace(here, host="elsewhere")) is RunStatus.RUNNING
    assert _running(tmp_path, None) is RunStatus.RUNNING


def test_a_run_that_ended_has_not_died(tmp_path: Path) -> None:
    record = _saved(tmp_path, "20260101-000000-aaaa").model_copy(update={"process": replace(this_process(), pid=0)})
    RunDirectory(tmp_path, record.run_id).save(record)
    assert find_run(tmp_path, "last").load().status is RunStatus.COMPLETED


def test_an_unwritable_home_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where a folder should be")
    with pytest.raises(ConfigError, match="AFM_HOME"):
        RunDirectory(tmp_path, new_run_id()).create()
