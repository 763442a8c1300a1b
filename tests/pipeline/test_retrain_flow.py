"""The flow of retraining with its real tasks and a session that makes stages up: what runs, on what, who meets whom."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from flow_samples import without_prefect

import flows.retrain
import tasks
import tasks.runner
import tasks.stages
from afm_core.config import load_config
from afm_core.execution import Retraining, RoadStage, StageRecord
from afm_core.execution.road import stages_until
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.taskcraft import PoolVersion
from afm_core.tracking import Champion


def ref(name: str) -> ArtifactRef:
    return ArtifactRef(kind=ArtifactKind.MODEL, digest=hashlib.sha256(name.encode()).hexdigest(), uri=name)


VERSIONS = tuple(PoolVersion("default", number, ref(f"v{number}")) for number in (1, 2, 3))
CHAMPION = Champion("1", ref("champion"), {"afm.predecessor": ref("base").digest})


class FakeSession:
    """Makes an artifact a stage, named by stage and variant, and remembers its inputs."""

    def __init__(self, until: RoadStage, new_gate: int, *overrides: str) -> None:
        self.config = load_config("smoke", None, overrides)
        self.until = until
        self.stages = stages_until(until, self.config) | {"pool"}
        self.inputs: dict[str, dict[str, str]] = {}
        self.record = SimpleNamespace(pool=None)
        self.store = SimpleNamespace(manifest=lambda _: SimpleNamespace(metrics={"new/gate": new_gate}))

    def execute(self, name: str, inputs: Mapping[str, ArtifactRef], variant: str = "", **_: Any) -> StageRecord:
        label = f"{name}:{variant}" if variant else name
        assert label not in self.inputs, "a stage ran twice"
        self.inputs[label] = {role: given.uri for role, given in inputs.items()}
        return StageRecord(name=label, cached=False, seconds=0, artifact=ref(label))


@pytest.fixture(autouse=True)
def _without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    without_prefect(monkeypatch, flows.retrain, lambda session, champion=None: {"champion": champion})


def run(
    monkeypatch: pytest.MonkeyPatch,
    *overrides: str,
    known: int = 0,
    champion: Champion | None = None,
    until: RoadStage = RoadStage.RL,
    new_gate: int = 6,
) -> tuple[dict[str, dict[str, str]], Any]:
    """(the stages of a retraining for version 3: label -> inputs, what it says of the champion)."""
    session = FakeSession(until, new_gate, *overrides)
    monkeypatch.setattr(flows.retrain, "open_session", lambda *_: nullcontext(session))
    monkeypatch.setattr(tasks.stages, "plan_retraining", lambda *_: Retraining(VERSIONS, known, champion))
    registry = SimpleNamespace(opponent=lambda _: champion)
    monkeypatch.setattr(tasks.stages.Registry, "of", lambda _: registry)
    document = flows.retrain.retrain.fn(profile="smoke", until=until)
    assert session.record.pool["version"] == 3
    return session.inputs, document["champion"]


def test_without_a_champion_the_base_is_trained_on_everything_and_is_the_rival(monkeypatch) -> None:
    made, _ = run(monkeypatch)
    assert made["pool"] == {"corpus": "corpus", "tasks": "tasks", "pool": "v3"}
    assert made["teach"] == {"corpus": "corpus", "tasks": "tasks"}
    for number in (1, 2, 3):
        assert made[f"teach:default-v{number}"] == {"corpus": "corpus", "tasks": "tasks", "additions": f"v{number}"}
    assert made["curate"] == {
        "tasks": "pool", "demonstrations": "teach",
        **{f"demonstrations.{number}": f"teach:default-v{number}" for number in (1, 2, 3)},
    }  # fmt: skip
    assert made["sft"] == {"base": "base", "demonstrations": "curate"}
    assert made["rl"]["tasks"] == "pool"
    assert {label for label in made if label.startswith("evaluate")} == {"evaluate:policy:rl", "evaluate:base"}
    assert made["register"] == {
        "challenger": "rl", "challenger_evaluation": "evaluate:policy:rl",
        "champion": "base", "champion_evaluation": "evaluate:base", "tasks": "pool",
    }  # fmt: skip


def test_the_champion_is_the_rival_and_what_it_knows_is_not_new(monkeypatch) -> None:
    made, _ = run(monkeypatch, known=2, champion=CHAMPION)
    assert made["pool"] == {"corpus": "corpus", "tasks": "tasks", "pool": "v3", "known": "v2"}
    assert (made["sft"]["base"], made["register"]["champion"]) == ("base", "champion")
    assert made["evaluate:champion"] == {"model": "champion", "tasks": "pool", "corpus": "corpus"}
    assert not any(role.startswith("replay") for role in made["curate"])


def test_training_that_goes_on_from_the_champion_replays_what_it_knows(monkeypatch) -> None:
    made, _ = run(monkeypatch, "sft.start=champion", known=2, champion=CHAMPION, until=RoadStage.SFT)
    assert made["curate"] == {
        "tasks": "pool", "replay": "teach", "replay.1": "teach:default-v1", "replay.2": "teach:default-v2",
        "demonstrations.3": "teach:default-v3",
    }  # fmt: skip
    assert made["sft"] == {"base": "champion", "demonstrations": "curate"}
    assert made["register"]["challenger_evaluation"] == "evaluate:policy"


def test_where_there_is_no_champion_to_go_on_from_the_base_stands_in(monkeypatch) -> None:
    made, _ = run(monkeypatch, "sft.start=champion")
    assert made["sft"]["base"] == "base"
    assert not any(role.startswith("replay") for role in made["curate"])


@pytest.mark.parametrize("champion", [None, CHAMPION])
def test_too_few_new_gate_tasks_are_refused_before_anything_is_trained(monkeypatch, champion) -> None:
    made, told = run(monkeypatch, champion=champion, new_gate=5)
    assert set(made) == {"corpus", "tasks", "pool"}
    assert told["outcome"] == "refused_too_few"
    assert told["champion"] == (champion.ref.digest if champion else None)
    assert told["reason"].startswith("5 new gate tasks, and 6 are needed")


def test_a_limit_below_the_number_needed_is_named(monkeypatch) -> None:
    _, told = run(monkeypatch, "evaluation.gate_limit=4", new_gate=100)
    assert told["reason"].endswith("there are 100, but evaluation.gate_limit = 4")


def test_a_road_that_ends_before_a_model_asks_no_gate(monkeypatch) -> None:
    made, told = run(monkeypatch, until=RoadStage.TEACH, new_gate=0)
    assert {"teach", "teach:default-v3"} <= set(made)
    assert not {"curate", "sft", "register"} & set(made)
    assert told is None


def test_the_form_of_the_prefect_ui_has_typed_parameters() -> None:
    validated = flows.retrain.retrain.validate_parameters({"until": "sft", "version": "3", "pool": "default"})
    assert (validated["until"], validated["version"]) == (RoadStage.SFT, 3)
