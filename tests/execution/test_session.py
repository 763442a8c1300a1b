"""A run's end as its record tells it, whatever ended it."""

import contextlib

import pytest

from afm_core.config import load_config
from afm_core.execution import FailureKind, RunSession, RunStatus, StageFailed, find_run, session


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        (KeyboardInterrupt(), RunStatus.CANCELLED, "interrupted"),
        (StageFailed("stage sft: no memory", FailureKind.FAILED), RunStatus.FAILED, "stage sft: no memory"),
        (ValueError(), RunStatus.FAILED, "ValueError"),
    ],
)
def test_the_record_says_how_a_run_ended(own_home, raised, status, told) -> None:
    with pytest.raises(type(raised)), RunSession(load_config("smoke"), "a-run"):
        raise raised
    record = find_run(own_home, "a-run").load()
    assert (record.status, record.error) == (status, told)


def test_a_failed_stage_is_named_and_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object, **__: object) -> None:
        raise StageFailed("process killed by SIGKILL", FailureKind.DIED)

    monkeypatch.setattr(session, "run_process", dies)
    with RunSession(load_config("smoke"), "a-run") as run, pytest.raises(StageFailed) as caught:
        run.execute("corpus", {})
    assert str(caught.value) == "stage corpus: process killed by SIGKILL"
    assert caught.value.kind is FailureKind.DIED


def test_a_cached_stage_does_not_wait_for_its_turn() -> None:
    turns: list[str] = []

    def turn(label: str) -> contextlib.AbstractContextManager[None]:
        turns.append(label)
        return contextlib.nullcontext()

    with RunSession(load_config("smoke"), "a-run") as run:
        first, again = (run.execute("corpus", {}, turn=turn) for _ in range(2))
    assert (first.cached, again.cached) == (False, True)
    assert turns == ["corpus"]
