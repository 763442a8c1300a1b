"""Joining or starting Ray: which one is taken, what it is asked for, how often a slow start is tried."""

from typing import Any

import pytest
import ray

from afm_core.cluster import connected, start_local


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `ray.init` was called with; no Ray is started."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(ray, "init", lambda **options: made.append(options))
    monkeypatch.setattr(ray, "shutdown", lambda: made.append({"shutdown": True}))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return made


def test_the_cluster_of_the_environment_is_joined_and_left(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with connected(2):
        (joined,) = calls
    assert joined["address"] == "10.0.0.1:6379"
    assert "num_cpus" not in joined
    assert calls[1:] == [{"shutdown": True}]


def test_a_local_one_never_joins_what_ray_start_left_running(calls: list[dict[str, Any]]) -> None:
    with pytest.raises(ValueError, match="in the block"), connected(3, 90_000_000):
        raise ValueError("in the block")
    assert calls[0]["address"] == "local"
    assert (calls[0]["num_cpus"], calls[0]["object_store_memory"]) == (3, 90_000_000)
    assert calls[1:] == [{"shutdown": True}]


def test_a_present_connection_is_used_and_kept(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    with connected(2):
        pass
    assert calls == []


@pytest.mark.parametrize(
    ("message", "tries"), [("The current node timed out during startup.", 3), ("no space left on device", 1)]
)
def test_only_a_slow_start_is_tried_again(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, message: str, tries: int
) -> None:
    made = []

    def init(**options: Any) -> None:
        made.append(options)
        raise RuntimeError(message)

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RuntimeError, match=message):
        start_local(2)
    assert len(made) == tries
