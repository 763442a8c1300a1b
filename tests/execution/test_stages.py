"""The table of stages: complete, importable, and keys that react to the right things."""

import importlib
from pathlib import Path

import grimp
import pytest

from afm_core.config import ConfigError, load_config
from afm_core.execution import STAGES, key_of, stage_named
from afm_core.execution.stages import ROOT, source_digest
from afm_core.store import ArtifactKind, ArtifactRef, StageSpec


def _spec(stage: str, overrides: tuple[str, ...] = (), **inputs: ArtifactRef) -> StageSpec:
    config = load_config("smoke", None, overrides).model_dump(mode="json")
    return StageSpec(stage=stage, config=config, inputs=inputs, store_uri="/nowhere")


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_every_stage_names_real_code(stage) -> None:
    module, _, function = stage.function.partition(":")
    assert importlib.util.find_spec(module) is not None
    source = Path(importlib.util.find_spec(module).origin).read_text()
    assert f"def {function}(" in source
    assert all((ROOT / path).exists() for path in stage.sources)
    room = Path(module.replace(".", "/")).parent
    assert any(Path(source) == room or room in Path(source).parents for source in stage.sources)


def test_a_key_follows_its_sections_inputs_and_variant_only() -> None:
    one = ArtifactRef(kind=ArtifactKind.CORPUS, digest="1" * 64, uri="/a")
    moved = one.model_copy(update={"uri": "/b"})
    other = one.model_copy(update={"digest": "2" * 64})
    key = key_of(_spec("tasks", corpus=one))
    assert key == key_of(_spec("tasks", ("sft.learning_rate=1", "store.uri=/x"), corpus=moved))
    assert key != key_of(_spec("tasks", ("tasks.seed=5",), corpus=one))
    assert key != key_of(_spec("tasks", corpus=other))
    assert key != key_of(_spec("tasks", corpus=one).model_copy(update={"variant": "x"}))


def test_source_digest_sees_content_and_ignores_order() -> None:
    assert source_digest(("afm_core/data", "afm_core/coa")) == source_digest(("afm_core/coa", "afm_core/data"))
    assert source_digest(("afm_core/data",)) != source_digest(("afm_core/coa",))


_FOUNDATIONS = ("afm_core.config", "afm_core.store", "afm_core.tracking", "afm_core.cluster")
_SHARED_MODULES = {"base", "register"}
"""Stages that share a module with a heavier one and declare only what they use of it."""
_UNUSED = {"evaluate": {f"afm_core.evaluation.{name}" for name in ("gate", "gate_retrained", "promotion")}}


@pytest.mark.parametrize("name", sorted(set(STAGES) - _SHARED_MODULES))
def test_declared_sources_cover_everything_a_stage_imports(name: str) -> None:
    stage = STAGES[name]
    module = stage.function.partition(":")[0]
    graph = grimp.build_graph("afm_core")
    reached = {module} | graph.find_upstream_modules(module)
    named = [source.replace("/", ".") for source in stage.sources]
    files = {one.removesuffix(".py").removesuffix(".__init__") for one in named if one.endswith(".py")}
    folders = [one for one in named if not one.endswith(".py")]
    missing = {
        one
        for one in reached - files - {"afm_core"}
        if not one.startswith(_FOUNDATIONS) and not any(one == each or one.startswith(each + ".") for each in folders)
    }
    assert missing <= _UNUSED.get(name, set())


def test_editing_reinforcement_learning_never_invalidates_an_sft_model() -> None:
    """Neither is it among the declared sources, nor does anything else of the room import it."""
    room = ROOT / "afm_core/training"
    assert not any((ROOT / source) in (room, *(room / "rl").rglob("*")) for source in STAGES["sft"].sources)
    graph = grimp.build_graph("afm_core")
    for module in graph.modules:
        if module.startswith("afm_core.training") and not module.startswith("afm_core.training.rl"):
            assert not any(".training.rl" in one for one in graph.find_modules_directly_imported_by(module)), module


def test_an_unknown_stage_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="corpus, tasks, teach"):
        stage_named("corpse")
