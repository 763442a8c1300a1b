"""The flow with its real tasks and a session that makes stages up: what runs, on what, who meets whom."""

import hashlib
from collections.abc import Mapping
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from flow_samples import without_prefect

import flows.pipeline
import tasks.runner
import tasks.stages
from afm_core.config import load_config
from afm_core.execution import RoadStage, RunSession, StageRecord
from afm_core.execution.road import stages_until
from afm_core.store import ArtifactKind, ArtifactRef
from afm_core.tracking import Champion


def ref(name: str) -> ArtifactRef:
    """An artifact that is named by what made it."""
    return ArtifactRef(kind=ArtifactKind.MODEL, digest=hashlib.sha256(name.encode()).hexdigest(), uri=name)


class FakeSession:
    """Makes an artifact a stage, named by stage, variant and configuration, and remembers its inputs."""

    def __init__(self, until: RoadStage, steps: int = 2, *overrides: str) -> None:
        self.config = load_config("smoke", None, (f"rl.steps={steps}", *overrides))
        files = [SimpleNamespace(path="selections/code-contribution.json")]
        self.store = SimpleNamespace(
            find=lambda text, kind: ref(f"{kind}:{text}"), manifest=lambda _: SimpleNamespace(files=files)
        )
        self.until = until
        self.stages = stages_until(until, self.config)
        self.inputs: dict[str, dict[str, str]] = {}

    def execute(self, name: str, inputs: Mapping[str, ArtifactRef], variant: str = "", **_: Any) -> StageRecord:
        label = f"{name}:{variant}" if variant else name
        assert label not in self.inputs, "a stage ran twice"
        self.inputs[label] = {role: given.uri for role, given in inputs.items()}
        return StageRecord(name=label, cached=False, seconds=0, artifact=ref(label))


class FakeRegistry:
    """A registry with one champion at most; whoever is registered wins."""

    def __init__(self) -> None:
        self.versions: dict[str, Champion] = {}
        self.alias: str | None = None

    def opponent(self, challenger: ArtifactRef) -> Champion | None:
        champion = self.versions.get(self.alias or "")
        if champion is None or champion.ref.digest != challenger.digest:
            return champion
        return self.versions.get(champion.predecessor or "")

    def crown(self, winner: ArtifactRef, loser: ArtifactRef) -> None:
        self.versions[winner.digest] = Champion("1", winner, {"afm.predecessor": loser.digest})
        self.alias = winner.digest


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> FakeRegistry:
    made = FakeRegistry()
    monkeypatch.setattr(tasks.stages.Registry, "of", lambda config: made)
    return made


@pytest.fixture(autouse=True)
def _without_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    without_prefect(monkeypatch, flows.pipeline, lambda session: {})


def run(
    monkeypatch: pytest.MonkeyPatch, until: RoadStage = RoadStage.RL, steps: int = 2, *overrides: str
) -> dict[str, dict[str, str]]:
    """The stages of a run: label -> inputs, each named by the stage that made it."""
    session = FakeSession(until, steps, *overrides)
    monkeypatch.setattr(flows.pipeline, "open_session", lambda *_: nullcontext(session))
    flows.pipeline.pipeline.fn(until=until)
    return session.inputs


def test_a_configured_diagnosis_is_an_input_of_fine_tuning(registry, monkeypatch) -> None:
    experts = ("sft.experts.diagnosis=abcd1234", "sft.experts.domain=code")
    made = run(monkeypatch, RoadStage.SFT, 2, *experts)
    assert made["sft"] == {"base": "base", "demonstrations": "curate", "diagnosis": "diagnosis:abcd1234"}
    assert run(monkeypatch, RoadStage.SFT)["sft"] == {"base": "base", "demonstrations": "curate"}


def test_the_whole_road_ends_with_the_rl_model_against_the_base(registry, monkeypatch) -> None:
    made = run(monkeypatch)
    assert made["select"] == {"tasks": "tasks", "corpus": "corpus", "policy": "sft", "base": "base"}
    assert made["rl"] == {"policy": "sft", "tasks": "tasks", "selected": "select", "corpus": "corpus"}
    assert {label: inputs["model"] for label, inputs in made.items() if "model" in inputs} == {
        "evaluate:policy:rl": "rl", "evaluate:policy": "sft", "evaluate:base": "base",
    }  # fmt: skip
    assert made["register"] == {
        "challenger": "rl", "challenger_evaluation": "evaluate:policy:rl",
        "champion": "base", "champion_evaluation": "evaluate:base",
    }  # fmt: skip


@pytest.mark.parametrize(("until", "steps"), [(RoadStage.SFT, 2), (RoadStage.RL, 0)])
def test_without_the_rl_leg_the_sft_model_is_the_challenger(registry, monkeypatch, until, steps) -> None:
    made = run(monkeypatch, until, steps)
    assert not {"select", "rl", "evaluate:policy:rl"} & set(made)
    assert (made["register"]["challenger"], made["register"]["champion"]) == ("sft", "base")


@pytest.mark.parametrize("until", [RoadStage.CORPUS, RoadStage.TASKS, RoadStage.CURATE, RoadStage.BASE])
def test_a_road_that_ends_before_a_model_measures_and_registers_nothing(registry, monkeypatch, until) -> None:
    order = [stage.value for stage in RoadStage]
    assert list(run(monkeypatch, until)) == order[: order.index(until) + 1]


def test_a_road_that_ends_with_the_selection_still_registers_the_sft_model(registry, monkeypatch) -> None:
    made = run(monkeypatch, RoadStage.SELECT)
    assert "rl" not in made
    assert made["register"]["challenger"] == "sft"


@pytest.mark.parametrize("wins", [True, False])
@pytest.mark.parametrize("before", [None, "sft", "elsewhere"])
def test_a_repeated_run_asks_the_gate_the_same_question(registry, monkeypatch, before, wins) -> None:
    if before:
        registry.crown(ref(before), ref("base"))
    first = run(monkeypatch)
    if wins:
        registry.crown(ref("rl"), ref(first["register"]["champion"]))
    assert run(monkeypatch) == first


def test_an_sft_champion_of_this_road_is_not_measured_twice(registry, monkeypatch) -> None:
    registry.crown(ref("sft"), ref("base"))
    made = run(monkeypatch)
    assert "evaluate:champion" not in made
    assert made["register"]["champion"] == "sft"
    assert made["register"]["champion_evaluation"] == "evaluate:policy"


def test_a_champion_from_elsewhere_is_measured_on_the_gate(registry, monkeypatch) -> None:
    registry.crown(ref("elsewhere"), ref("base"))
    made = run(monkeypatch)
    assert made["evaluate:champion"]["model"] == "elsewhere"
    assert made["register"]["champion"] == "elsewhere"


def test_the_form_of_the_prefect_ui_offers_every_stage_to_end_with() -> None:
    schema = flows.pipeline.pipeline.parameters.model_dump()
    (choices,) = (one["enum"] for name, one in schema["definitions"].items() if name == "RoadStage")
    assert choices == [stage.value for stage in RoadStage]
    validated = flows.pipeline.pipeline.validate_parameters({"until": "sft"})
    assert validated["until"] is RoadStage.SFT


def test_a_run_that_ends_early_is_completed_with_a_report_and_without_a_champion(tmp_path, monkeypatch) -> None:
    import flows.publish

    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)
    for name in ("create_table_artifact", "create_markdown_artifact", "create_link_artifact"):
        monkeypatch.setattr(flows.publish, name, lambda **_: None)
    parameters = {"until": "corpus"}
    with RunSession(load_config("smoke"), "r1", parameters=parameters, until=RoadStage.CORPUS) as session:
        document = flows.publish.publish.fn(session)
    assert (document["status"], document["models"], document["champion"]) == ("completed", {}, None)
    assert "<html" in session.directory.report.read_text()
    assert session.directory.load().parameters == parameters
