"""The spool: whole lines or none, and never an exception."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.tracking import MetricSpool, replay
from afm_core.tracking.spool import read_spool, spool_files


def contents(spool: MetricSpool) -> list[dict]:
    return [line.content for line in read_spool(spool.path)]


def test_metrics_keep_their_step_and_time(tmp_path: Path):
    spool = MetricSpool(tmp_path, "run:sft", {"afm.run": "run"})
    spool.log({"loss": 1.5, "n": 3}, step=7, timestamp=123)
    assert contents(spool) == [
        {"tags": {"afm.run": "run"}},
        {"metrics": {"loss": 1.5, "n": 3.0}, "step": 7, "time": 123},
    ]
    assert spool_files(tmp_path) == [("run:sft", spool.path)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "text", None, [1]])
def test_values_that_are_no_finite_numbers_are_set_apart(tmp_path: Path, value: object):
    spool = MetricSpool(tmp_path, "a")
    spool.log({"loss": value, "ok": 1.0}, step=2, timestamp=1)
    good, strange = contents(spool)
    assert good["metrics"] == {"ok": 1.0}
    assert list(strange["nonfinite"]) == ["loss"]
    json.loads(spool.path.read_text().splitlines()[1], parse_constant=lambda name: pytest.fail(name))
    assert spool.failures == 0


def test_unwritable_spool_never_raises_but_says_so(tmp_path: Path):
    (tmp_path / "file").write_text("")
    spool = MetricSpool(tmp_path / "file" / "spool", "a", {"x": "y"})
    spool.log({"loss": 1.0})
    spool.log_params({"x": object()})
    spool.end()
    assert spool.failures == 4
    assert "Error" in spool.last_error


@given(
    st.lists(st.dictionaries(st.text(max_size=4), st.floats(-9, 9), min_size=1, max_size=3), min_size=1, max_size=5),
    st.data(),
)
def test_torn_line_of_a_killed_writer_costs_that_line_only(tmp_path_factory, rows, data):
    spool = MetricSpool(tmp_path_factory.mktemp("spool"), "a")
    for step, row in enumerate(rows):
        spool.log(row, step, timestamp=1)
    before = contents(spool)
    whole = spool.path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    spool.path.write_bytes(whole[:cut])
    spool.log({"later": 1.0}, timestamp=2)
    complete = whole[:cut].count(b"\n")
    after = [line for line in contents(spool) if line]
    assert after[:complete] == before[:complete]
    assert after[-1]["metrics"] == {"later": 1.0}
    assert len(after) - complete <= 2


def test_unfinished_last_line_waits_for_the_next_replay(tmp_path: Path):
    spool = MetricSpool(tmp_path, "a")
    spool.log({"x": 1.0})
    with spool.path.open("ab") as stream:
        stream.write(b'{"metrics": {"y"')
    assert len(contents(spool)) == 1


def test_parameters_are_flattened(tmp_path: Path):
    spool = MetricSpool(tmp_path, "a")
    spool.log_params({"sft": {"seed": 1, "lora": {"rank": 2}}, "x": None})
    assert contents(spool) == [{"params": {"sft.seed": "1", "sft.lora.rank": "2", "x": "None"}}]


def test_replay_without_a_spool_does_nothing(tmp_path: Path):
    assert replay(tmp_path / "absent", "sqlite:////nowhere/x.db", "afm").error == ""
