"""What refuses a run before it starts, in the plan and in the session alike."""

from pathlib import Path

import pytest

from afm_core.config import ConfigError, RunConfig, load_config
from afm_core.execution import STAGES, RunDirectory, RunSession, expert_inputs, key_of, open_run_store, run_json
from afm_core.execution.plan import plan_run
from afm_core.execution.runs import RunRecord, now
from afm_core.store import ArtifactKind, ArtifactRef, StageResult, StageSpec, Store

REFUSED = [
    ("agent.tools.web_search=nope", r"agent\.tools\.web_search: no tool 'nope'"),
    ("agent.tools.web_serch=search_local", r"'web_serch' is no tag .* did you mean 'web_search'"),
    ("model.source=", r"no model ''"),
    ("model.source=org/name", r"set HF_HUB_OFFLINE=0"),
    ("model.source=s3://bucket/model", r"no credentials"),
    ('sft.experts={diagnosis="abcd1234",domain="code"}', r"no diagnosis 'abcd1234'"),
    ("store.uri=s3://nowhere/x", r"no credentials"),
    ("store.uri=http://host/x", r"can be a store"),
]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("override", "told"), REFUSED)
def test_what_cannot_work_refuses_plan_and_run_and_makes_no_record(own_home: Path, override: str, told: str) -> None:
    config = load_config("smoke", None, [override])
    with pytest.raises(ConfigError, match=told):
        plan_run(config)
    assert not own_home.exists()
    with pytest.raises(ConfigError, match=told):
        RunSession(config, "a-run")
    assert not (own_home / "runs").exists()


def test_a_model_that_is_in_the_store_need_not_be_had_again(tmp_path: Path) -> None:
    config = load_config("smoke", None, [f"store.uri={tmp_path / 'store'}", "model.source=org/name"])
    store = open_run_store(load_config("smoke", None, [f"store.uri={tmp_path / 'store'}"]))
    spec = StageSpec(stage="base", config=config.model_dump(mode="json"), store_uri=store.uri)
    with store.attempt(
        key=key_of(spec), spec=spec, kind=ArtifactKind.MODEL, sections=(), scratch=tmp_path / "scratch"
    ) as attempt:
        (attempt.output / "config.json").touch()
        attempt.commit(StageResult())
    assert open_run_store(config).uri == store.uri


def test_a_diagnosis_needs_the_selection_and_is_an_input_of_the_planned_sft(tmp_path: Path) -> None:
    stored = f"store.uri={tmp_path / 'store'}"
    store = open_run_store(load_config("smoke", None, [stored]))
    spec = StageSpec(stage="diagnose", config=load_config("smoke").model_dump(mode="json"), store_uri=store.uri)
    with store.attempt(
        key=key_of(spec), spec=spec, kind=ArtifactKind.DIAGNOSIS, sections=(), scratch=tmp_path / "scratch"
    ) as attempt:
        (attempt.output / "selections").mkdir()
        (attempt.output / "selections" / "code-contribution.json").write_text("{}")
        ref = attempt.commit(StageResult())
    chosen = [stored, f"sft.experts.diagnosis={ref.digest[:12]}", "sft.experts.domain=code"]
    assert expert_inputs(store, load_config("smoke", None, chosen)) == {"diagnosis": ref}
    assert expert_inputs(store, load_config("smoke", None, [stored])) == {}
    with pytest.raises(ConfigError, match="has no selection prose-contribution; it has code-contribution"):
        plan_run(load_config("smoke", None, [*chosen, "sft.experts.domain=prose"]))
    known = commit_road(store, load_config("smoke", None, chosen), tmp_path)
    key = next(step.key for step in plan_run(load_config("smoke", None, chosen)) if step.name == "sft")
    config = load_config("smoke", None, chosen).model_dump(mode="json")
    inputs = {"base": known["base"], "demonstrations": known["curate"], "diagnosis": ref}
    assert key == key_of(StageSpec(stage="sft", config=config, inputs=inputs, store_uri=store.uri))


def commit_road(store: Store, config: RunConfig, root: Path) -> dict[str, ArtifactRef]:
    """The stages before sft, committed without content."""
    road = {
        "corpus": {},
        "tasks": {"corpus": "corpus"},
        "teach": {"corpus": "corpus", "tasks": "tasks"},
        "curate": {"demonstrations": "teach", "tasks": "tasks"},
        "base": {"corpus": "corpus"},
    }
    known: dict[str, ArtifactRef] = {}
    for name, sources in road.items():
        inputs = {role: known[source] for role, source in sources.items()}
        spec = StageSpec(stage=name, config=config.model_dump(mode="json"), inputs=inputs, store_uri=store.uri)
        kind = STAGES[name].kind
        scratch = root / f"scratch-{name}"
        with store.attempt(key=key_of(spec), spec=spec, kind=kind, sections=(), scratch=scratch) as attempt:
            (attempt.output / name).write_text(name)
            known[name] = attempt.commit(StageResult())
    return known


def test_the_document_of_a_failed_run_says_why(tmp_path: Path) -> None:
    record = RunRecord(run_id="a", profile="smoke", started=now(), pid=1, status="failed", error="no disk")
    directory = RunDirectory(tmp_path, "a").create()
    directory.save(record)
    document = run_json(directory.load())
    assert (document["run_id"], document["status"], document["error"], document["stages"]) == (
        "a",
        "failed",
        "no disk",
        [],
    )
    assert "config" not in document
