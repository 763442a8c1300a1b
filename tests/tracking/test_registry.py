"""The registry over a real MLflow."""

import pytest

from afm_core.config import ConfigError
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.tracking import Registry, TrackingError

pytestmark = pytest.mark.integration


def model(letter: str) -> ArtifactRef:
    return ArtifactRef(kind=ArtifactKind.MODEL, digest=letter * 64, uri=f"/store/work/{letter}/0001/manifest.json")


@pytest.fixture
def registry(mlflow_uri: str) -> Registry:
    return Registry(mlflow_uri, "afm")


def test_empty_registry_has_no_champion(registry: Registry):
    assert registry.champion() is None
    assert registry.versions() == []
    assert registry.opponent(model("a")) is None


def test_registered_champion_tells_its_artifact_and_lineage(registry: Registry, mlflow_uri: str):
    version = registry.register(model("a"), {"afm.stage": "sft"})
    assert registry.champion() is None
    registry.set_champion(version)
    champion = Registry(mlflow_uri, "afm").champion()
    assert champion.ref == model("a")
    assert champion.version == version
    assert champion.tags["afm.stage"] == "sft"


def test_registering_the_same_digest_again_gives_the_same_version(registry: Registry):
    first = registry.register(model("a"))
    assert registry.register(model("a"), {"other": "tags"}) == first
    assert registry.register(model("b")) != first
    assert [one.ref.digest[0] for one in registry.versions()] == ["a", "b"]


def test_one_that_was_rejected_and_wins_later_says_so(registry: Registry):
    version = registry.register(model("a"), {"afm.outcome": "no_gain", "afm.predecessor": "1" * 64})
    registry.register(model("a"), {"afm.outcome": "promoted", "afm.predecessor": "2" * 64})
    (found,) = registry.versions()
    assert (found.version, found.tags["afm.outcome"], found.predecessor) == (version, "promoted", "2" * 64)


def test_opponent_of_the_champion_is_the_one_it_beat(registry: Registry):
    registry.set_champion(registry.register(model("a"), {"afm.predecessor": "0" * 64}))
    assert registry.opponent(model("b")).ref == model("a")
    assert registry.opponent(model("a")) is None  # it beat the base model, which is no version
    registry.set_champion(registry.register(model("b"), {"afm.predecessor": model("a").digest}))
    assert registry.opponent(model("b")).ref == model("a")
    assert registry.opponent(model("a")).ref == model("b")


def test_model_in_object_storage_keeps_its_uri(registry: Registry):
    ref = ArtifactRef(kind=ArtifactKind.MODEL, digest="c" * 64, uri="s3://bucket/work/c/0001/manifest.json")
    registry.set_champion(registry.register(ref))
    assert registry.champion().ref == ref


def test_unreachable_registry_raises(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr("afm_core.tracking.registry.RETRY_SECONDS", (0.0,))
    with pytest.raises(TrackingError, match="does not answer"):
        Registry("http://127.0.0.1:9", "afm").champion()
    with pytest.raises(ConfigError, match=r"tracking\.uri"):
        Registry("nonsense://x", "afm").champion()


def test_missing_version_cannot_be_crowned(registry: Registry):
    registry.register(model("a"))
    with pytest.raises(TrackingError, match="set the champion"):
        registry.set_champion("99")
