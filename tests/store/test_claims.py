"""Claims: one at a time, a dead holder's is taken over, over a directory and over S3."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from store_helpers import FAST

from afm_core.store import Store, claimed, open_store
from afm_core.store.lease import this_process


def test_holders_take_turns(store: Store) -> None:
    inside: list[int] = []
    most: list[int] = []

    def hold(number: int) -> None:
        with claimed(store, "thing"):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.01)
            inside.remove(number)

    threads = [threading.Thread(target=hold, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_a_claim_is_released_when_its_work_fails(local_store: Store) -> None:
    with pytest.raises(RuntimeError, match="work"):
        with claimed(local_store, "thing"):
            raise RuntimeError("work")
    with claimed(local_store, "thing"), claimed(local_store, "another"):
        pass


def test_the_claim_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), tmp_path / "cache", FAST)
    program = (
        "import sys, time; from pathlib import Path; from afm_core.store import claimed, open_store\n"
        "with claimed(open_store(sys.argv[1], Path(sys.argv[2])), 'thing'):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", program, store.uri, str(tmp_path / "other")]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    waiting = threading.Event()

    def take_over() -> None:
        with claimed(store, "thing"):
            waiting.set()

    thread = threading.Thread(target=take_over)
    thread.start()
    assert not waiting.wait(0.1)
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    thread.join(timeout=30)
    assert waiting.is_set()


def test_a_silent_holder_elsewhere_is_dead_after_a_while(local_store: Store, monkeypatch) -> None:
    now = [0.0]
    timing = replace(FAST, clock=lambda: now[0], sleep=lambda _: now.__setitem__(0, now[0] + 1))
    store = Store(local_store.backend, local_store.cache, timing)
    elsewhere = replace(this_process(), host="elsewhere")
    monkeypatch.setattr("afm_core.store.claims.this_process", lambda: elsewhere)
    monkeypatch.setattr("afm_core.store.lease.Heartbeat.start", lambda self: None)
    monkeypatch.setattr("afm_core.store.lease.Heartbeat.stop", lambda self: None)
    with claimed(store, "thing"):
        with claimed(store, "thing"):  # its holder never beats again
            pass
    assert now[0] >= FAST.dead_after
