"""How far a run goes, and that plan, session and command agree about it."""

import pytest

from afm_core.config import ConfigError, load_config
from afm_core.execution import RoadStage, road_stage
from afm_core.execution.plan import plan_run
from afm_core.execution.road import stages_until


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("AFM_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AFM_STORE", raising=False)


def _config(*overrides: str):
    return load_config("smoke", None, ("rl.steps=2", *overrides))


@pytest.mark.parametrize("end", list(RoadStage))
def test_a_run_makes_everything_up_to_its_end_and_measures_only_trained_models(end: RoadStage) -> None:
    made = stages_until(end, _config())
    order = [stage.value for stage in RoadStage]
    assert made & set(order) == set(order[: order.index(end) + 1])
    assert ("register" in made) == ("evaluate" in made) == (end in {RoadStage.SFT, RoadStage.SELECT, RoadStage.RL})


def test_without_steps_there_is_no_rl_leg_and_no_selection_for_it() -> None:
    config = _config("rl.steps=0")
    assert stages_until(RoadStage.RL, config) == stages_until(RoadStage.SFT, config)
    assert "select" in stages_until(RoadStage.SELECT, config)


def test_an_unknown_end_names_the_nearest_stage() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sft'"):
        road_stage("stf")


@pytest.mark.parametrize("end", list(RoadStage))
@pytest.mark.parametrize("steps", [0, 2])
def test_the_plan_shows_what_the_run_will_make(end: RoadStage, steps: int) -> None:
    config = _config(f"rl.steps={steps}")
    names = [step.name for step in plan_run(config, until=end)]
    assert {name.partition(":")[0] for name in names} == stages_until(end, config)
    assert ("evaluate:policy:rl" in names) == ("rl" in names)
    assert ("evaluate:policy" in names) == ("sft" in names)


def _resources(name: str, *overrides: str) -> str:
    config = load_config("laptop", None, ("rl.steps=2", *overrides))
    return next(step.resources for step in plan_run(config) if step.name == name)


def test_the_plan_estimates_trainer_and_engine_of_rl() -> None:
    assert "ZeRO-0, about 2.0 GiB" in _resources("sft")
    sharded = _resources("rl", "rl.world_size=2", "rl.zero_stage=3", "rollout.workers=3", "engine.dtype=bf16")
    assert "2 worker(s), 2 threads each, ZeRO-3, about 1.0 GiB" in sharded
    assert "in 3 worker(s), about 770 MiB of weights" in sharded
    assert "in the trainer's process" in _resources("rl")
    assert "ZeRO-1" in _resources("rl", "rl.dtype=bf16")
    assert _resources("select", "selection.samples=0", "selection.closed_book_samples=0") == "1 process"
    assert "engine" in _resources("select", "selection.samples=4")


TEAM = (
    "teacher.kind=team",
    'team.endpoints=[{name="a", base_url="http://127.0.0.1:8/v1", model="m", concurrency=3}]',
)


def test_where_the_team_teaches_its_stage_takes_the_place_of_the_solution_teachers() -> None:
    config = _config(*TEAM)
    assert stages_until(RoadStage.TEACH, config) == {"corpus", "tasks", "rollout"}
    steps = plan_run(config)
    assert {step.name.partition(":")[0] for step in steps} == stages_until(RoadStage.RL, config)
    assert "teach" not in {step.name for step in steps}
    assert "3 requests at a time" in next(step.resources for step in steps if step.name == "rollout")


def test_a_team_without_a_model_or_its_key_is_refused_before_anything_starts(monkeypatch) -> None:
    with pytest.raises(ConfigError, match=r"set team\.endpoints"):
        _config("teacher.kind=team")
    keyed = 'team.endpoints=[{name="a", base_url="http://127.0.0.1:8/v1", model="m", key_variable="NO_SUCH_KEY"}]'
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        plan_run(_config("teacher.kind=team", keyed))
    monkeypatch.setenv("NO_SUCH_KEY", "x")
    assert plan_run(_config("teacher.kind=team", keyed))
