"""What a retraining starts from: how much of the pool the champion knows, and the same question when it is repeated."""

from types import SimpleNamespace
from typing import Any

import pytest

from afm_core.config import ConfigError
from afm_core.execution import plan_retraining
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.tracking import Champion


def _ref(name: str) -> ArtifactRef:
    return ArtifactRef(kind=ArtifactKind.MODEL, digest=name, uri=name)


def _champion(name: str, pool: str = "", version: int = 0, known: int = 0, predecessor: str = "base") -> Champion:
    tags = {"afm.predecessor": predecessor}
    if pool:
        tags |= {"afm.pool": pool, "afm.pool.version": str(version), "afm.pool.known": str(known)}
    return Champion("1", _ref(name), tags)


def _registry(*versions: Champion) -> Any:
    """The last one is the champion."""
    return SimpleNamespace(
        champion=lambda: versions[-1] if versions else None,
        find=lambda digest: next((one for one in versions if one.ref.digest == digest), None),
    )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A store with the pool `default` of four versions."""
    pool = [SimpleNamespace(pool="default", version=number, ref=_ref(f"v{number}")) for number in (1, 2, 3, 4)]
    monkeypatch.setattr("afm_core.execution.retraining.pool_versions", lambda *_: pool)
    monkeypatch.setattr("afm_core.execution.retraining.find_version", lambda _, __, number: pool[(number or 4) - 1])
    return SimpleNamespace()


@pytest.mark.parametrize(
    ("versions", "wanted", "known", "start"),
    [
        ((), 4, 0, None),
        ((_champion("m1"),), 4, 0, "m1"),
        ((_champion("m1", "other", 9),), 4, 0, "m1"),
        ((_champion("m1", "default", 2, 0),), 4, 2, "m1"),
        ((_champion("m1", "default", 4, 2, predecessor="m0"), ), 4, 2, None),
        ((_champion("m0"), _champion("m1", "default", 4, 2, predecessor="m0")), 4, 2, "m0"),
        ((_champion("m0"), _champion("m1", "default", 4, 3, predecessor="m0")), 2, 2, "m0"),
    ],
)  # fmt: skip
def test_new_is_what_the_champion_was_not_trained_for(store, versions, wanted, known, start) -> None:
    plan = plan_retraining(store, _registry(*versions), "default", wanted)
    assert (plan.pool.version, plan.known) == (wanted, known)
    assert (plan.champion.ref.digest if plan.champion else None) == start
    assert len(plan.versions) == wanted


def test_a_repeated_retraining_asks_the_same_question_after_its_model_was_crowned(store) -> None:
    before = _champion("m0", "default", 1)
    first = plan_retraining(store, _registry(before), "default")
    crowned = _champion("m1", "default", 4, known=first.known, predecessor="m0")
    assert plan_retraining(store, _registry(before, crowned), "default") == first


def test_an_absent_pool_is_the_users_mistake(local_store_of_nothing) -> None:
    with pytest.raises(ConfigError, match="afm tasks add FILE"):
        plan_retraining(local_store_of_nothing, _registry(), "default")


@pytest.fixture
def local_store_of_nothing(tmp_path) -> Any:
    from afm_core.store import open_store

    return open_store(str(tmp_path / "store"), tmp_path / "cache")
