"""A stage's turn on a real Prefect server: one holder at a time, who waits is told so, nobody keeps a slot."""

import os
import threading
from pathlib import Path
from uuid import uuid4

import pytest

pytestmark = pytest.mark.integration


def test_a_stage_waits_for_the_slot_that_another_holds_and_gives_it_back(own_home: Path, monkeypatch) -> None:
    from flows.embedded import embedded_server, wait_until_healthy

    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_SERVER_CONCURRENCY_MAXIMUM_CONCURRENCY_SLOT_WAIT_SECONDS", "0.2")
    with embedded_server(own_home) as ours:
        from prefect.client.orchestration import get_client
        from prefect.settings import PREFECT_API_URL, temporary_settings

        from tasks.limits import turn

        wait_until_healthy(ours=ours)
        told: list[bool] = []
        second_waits, second_is_done = threading.Event(), threading.Event()

        def second() -> None:
            def on_wait(waiting: bool) -> None:
                told.append(waiting)
                second_waits.set()

            with temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}):
                with turn("sft", uuid4(), on_wait):
                    second_is_done.set()

        with (
            temporary_settings({PREFECT_API_URL: os.environ["PREFECT_API_URL"]}),
            get_client(sync_client=True) as client,
        ):
            with turn("sft", uuid4()):
                pass  # no limit is set: it bounds nothing
            client.upsert_global_concurrency_limit_by_name("gpu", 1)
            thread = threading.Thread(target=second, daemon=True)
            with turn("rl", uuid4()):
                assert client.read_global_concurrency_limit_by_name("gpu").active_slots == 1
                thread.start()
                assert second_waits.wait(30)
                assert not second_is_done.is_set()
                with turn("corpus", uuid4()):
                    pass  # takes nothing of the GPU's limit
            assert second_is_done.wait(30)
            thread.join(30)
            assert told == [True, False]
            assert client.read_global_concurrency_limit_by_name("gpu").active_slots == 0
