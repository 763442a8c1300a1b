"""Who counts as dead: by process on this host, by heartbeat elsewhere, with a clock of the test's own."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from store_helpers import KEY, commit, spec_for

from afm_core.store import ArtifactKind, LeaseHeld, Store, Timing, open_store
from afm_core.store.lease import Heartbeat, Holder, Leases, Process, gone, heartbeat_path, this_process


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(local_store: Store, clock: Clock) -> Leases:
    return Leases(local_store.backend, Timing(clock=clock, sleep=clock.sleep))


FOREIGN = dataclasses.replace(this_process(), host="another-host")


def held(store: Store, process: Process, epoch: int = 1) -> Holder:
    holder = Holder(key=KEY, epoch=epoch, attempt="other", process=process)
    assert store.leases().take(holder)
    return holder


def test_this_process_lives_and_a_reused_pid_is_not_it():
    assert gone(this_process()) is False
    assert gone(dataclasses.replace(this_process(), started="1")) is True


def test_ended_process_and_zombie_are_gone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        from afm_core.store.lease import _start_time

        process = dataclasses.replace(this_process(), pid=child.pid, started=_start_time(child.pid))
        assert gone(process) is False
    finally:
        child.kill()
    import os

    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped: a zombie
    assert gone(process) is True
    child.wait()
    assert gone(process) is True


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"host": "another"}, None),
        ({"boot": "another boot", "machine": "another machine"}, None),
        ({"boot": "another boot", "machine": ""}, None),
        ({"namespace": "pid:[1]"}, None),
    ],
)
def test_process_elsewhere_cannot_be_judged_from_here(change: dict[str, str], verdict: bool | None):
    assert gone(dataclasses.replace(this_process(), **change)) is verdict


def test_process_before_a_reboot_of_this_machine_is_gone():
    here = dataclasses.replace(this_process(), boot="earlier boot")
    assert gone(here) is (True if here.machine else None)


def test_dead_holder_on_this_host_is_replaced_at_once(local_store: Store):
    held(local_store, dataclasses.replace(this_process(), started="0"))
    assert commit(local_store).digest
    assert local_store.leases().epochs(KEY) == [1, 2]


def test_holder_elsewhere_is_dead_after_15_silent_seconds_of_the_observers_clock(
    local_store: Store, leases: Leases, clock: Clock
):
    holder = held(local_store, FOREIGN)
    local_store.backend.write(heartbeat_path(holder), b"7")
    verdicts = []
    for _ in range(4):
        verdicts.append(leases.dead(holder))
        clock.now += 5
    assert verdicts == [False, False, False, True]


def test_moving_counter_keeps_a_holder_elsewhere_alive(local_store: Store, leases: Leases, clock: Clock):
    holder = held(local_store, FOREIGN)
    for count in range(10):
        local_store.backend.write(heartbeat_path(holder), str(count).encode())
        assert not leases.dead(holder)
        clock.now += 14


def test_holder_elsewhere_that_never_beat_is_dead_too(local_store: Store, leases: Leases, clock: Clock):
    holder = held(local_store, FOREIGN)
    assert not leases.dead(holder)
    clock.now += 15
    assert leases.dead(holder)


def test_unreadable_lease_is_judged_by_its_heartbeat(local_store: Store, leases: Leases, clock: Clock):
    local_store.backend.write(f"work/{KEY}/lease/0001.json", b"garbage")
    holder = leases.newest(KEY)
    assert not leases.dead(holder)
    clock.now += 15
    assert leases.dead(holder)


def test_live_holder_is_refused_without_waiting(local_store: Store, tmp_path: Path):
    held(local_store, this_process())
    refused = local_store.attempt(
        key=KEY,
        spec=spec_for(local_store),
        kind=ArtifactKind.CORPUS,
        sections=(),
        scratch=tmp_path,
        wait=False,
    )
    with pytest.raises(LeaseHeld, match=r"attempt other .* is at work"), refused:
        pass


def test_waiting_attempt_returns_what_the_holder_committed(local_store: Store, tmp_path: Path):
    def look(holder: Holder) -> None:
        seen.append(holder.attempt)
        local_store.leases().finish(holder, "failed")
        commit(local_store, files={"x": b"theirs"})

    seen: list[str] = []
    held(local_store, this_process())
    with local_store.attempt(
        key=KEY,
        spec=spec_for(local_store),
        kind=ArtifactKind.CORPUS,
        sections=(),
        scratch=tmp_path,
        on_wait=look,
    ) as waiting:
        assert seen == ["other"]
        assert (local_store.open(waiting.committed).path / "x").read_bytes() == b"theirs"


def test_silent_holder_elsewhere_is_replaced(tmp_path: Path, clock: Clock):
    timing = Timing(poll=0.0, clock=clock, sleep=clock.sleep)
    store = open_store(str(tmp_path / "store"), tmp_path / "cache", timing)
    held(store, FOREIGN)
    with store.attempt(
        key=KEY,
        spec=spec_for(store),
        kind=ArtifactKind.CORPUS,
        sections=(),
        scratch=tmp_path,
        on_wait=lambda holder: clock.sleep(4),
    ) as one:
        assert one.holder.epoch == 2


def test_heartbeat_counts_up_and_outlives_a_failing_store(local_store: Store):
    holder = Holder(key=KEY, epoch=1)
    beats: list[bytes] = []

    class Flaky:
        def write(self, path: str, data: bytes, durable: bool) -> None:
            beats.append(data)
            if len(beats) == 1:
                raise OSError("down")

    heartbeat = Heartbeat(Flaky(), holder, 0.001)
    heartbeat.start()
    while len(beats) < 3:
        pass
    heartbeat.stop()
    assert heartbeat.failures == 1
    assert beats[:3] == [b"1", b"2", b"3"]
