"""The report's section on reinforcement learning: what rl.json says is shown, broken parts cost only themselves."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evaluation_fakes import World
from evaluation_samples import sample_report_data, sample_rl
from hypothesis import given
from hypothesis import strategies as st

from afm_core.data import Origin, Segment, Status, Trajectory, Usage, trajectories_table
from afm_core.evaluation.report import ReportData, RlView, collect, headline, render
from afm_core.evaluation.report.charts import ticks
from afm_core.evaluation.report.learning import curve_panels, left_out, selection_bars
from afm_core.evaluation.report.panels import Panel, draw
from afm_core.evaluation.rl_results import end_words, load_rl
from afm_core.store import ArtifactKind, StageResult, write_table


def test_curves_marks_and_counts_are_there() -> None:
    page = render(sample_report_data())
    for title, _ in curve_panels(sample_rl()):
        assert f">{title}</figcaption>" in page
    assert page.count('class="mark"') == 1
    assert "kept: the model after step 9 of 12 steps" in page
    assert "group without signal (all alike)" in page
    assert "118.0 in the first step &lt;b&gt;" in page
    assert ">RL</li>" in page  # the legend of accuracy by hops


def test_every_sampled_trajectory_is_accounted_for() -> None:
    rl = sample_rl()
    assert sum(count for _, count, _, _ in left_out(rl)) == sum(rl.statuses.values()) == 12 * 64
    assert sum(share for _, _, share, _ in left_out(rl)) == pytest.approx(1)
    assert [label for label, *_ in selection_bars(rl)] == ["kept", "too easy", "too hard", "known"]
    assert selection_bars(RlView(rl.record, {"kept": 9})) == []


@pytest.mark.parametrize("steps", [0, 1])
def test_a_training_of_no_or_one_step_still_has_its_section(steps: int) -> None:
    rl = sample_rl(steps)
    page = render(ReportData(run_id="r", status="completed", rl=rl))
    assert "kept: the model it was given" in page
    assert "nan" not in page
    unmeasured = RlView({**rl.record, "evaluations": [], "steps": []})
    assert curve_panels(unmeasured) == []
    assert "Reinforcement learning" in render(ReportData(run_id="r", status="completed", rl=unmeasured))


def test_a_run_of_rl_alone_is_headed_by_its_dev_accuracy() -> None:
    assert headline(ReportData(run_id="r", status="completed", rl=sample_rl())).endswith("from 42.0% to 68.0%.")


def test_losses_below_zero_are_drawn_inside_the_panel() -> None:
    chart = draw(Panel("loss", [(1, -0.5), (2, 0.25), (3, -1.0)]), (1, 3))
    heights = [float(y) for _, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', chart)]
    assert len(heights) == 3
    assert heights[2] > heights[0] > heights[1] > 0
    assert heights[2] < 200
    assert 'class="zero"' in chart
    assert draw(Panel("loss", [(1, float("nan"))]), (1, 1)) == ""


@given(st.floats(-1e6, 1e6), st.floats(1e-12, 1e6), st.integers(2, 8))
def test_ticks_are_distinct_ordered_and_inside(low: float, span: float, count: int) -> None:
    if low + span / 100 == low:
        return
    marks = ticks(low, low + span, count)
    assert marks == sorted(set(marks))
    assert all(low - 1e-6 * span <= mark <= low + span * (1 + 1e-6) for mark in marks)


def test_a_record_that_is_none_names_its_file(tmp_path) -> None:
    assert load_rl(tmp_path) is None
    for content, told in (("{half", "cannot be read"), ('{"steps": []}', "evaluations, registered_step missing")):
        (tmp_path / "rl.json").write_text(content)
        with pytest.raises(ValueError, match=told):
            load_rl(tmp_path)


@pytest.mark.parametrize(("end", "words"), [("completed", "All steps"), ("no_signal", "no group"), ("new", "new")])
def test_every_end_has_words(end: str, words: str) -> None:
    assert words in end_words({"end": end, "registered_step": 1, "steps": [{}]})


# --- collecting


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("report"))


def _rollout(world, name: str, reward: float) -> Trajectory:
    task = world.tasks[0]
    ids = tuple(world.tokenizer("<answer>X</answer>", add_special_tokens=False)["input_ids"])
    asked = Segment(origin=Origin.PROMPT, text="Question", token_ids=(1, 2))
    sampled = Segment(
        origin=Origin.SAMPLED, text="<answer>X</answer>", token_ids=ids, logprobs=(-0.1,) * len(ids), policy_version="v"
    )
    return Trajectory(
        id=name, task_id=task.id, question=task.question, answer="X", grammar="web", source="v", reward=reward,
        segments=(asked, sampled), status=Status.COMPLETED, usage=Usage(prompt_tokens=2),
    )  # fmt: skip


def _write_step(world, directory) -> None:
    directory.mkdir(parents=True)
    every = [_rollout(world, "won", 1.0), _rollout(world, "lost", 0.0), _rollout(world, "alike", 1.0)]
    write_table(trajectories_table(every), directory / "trajectories.parquet")
    rows = {"id": ["won", "lost"], "mask": [[0, 1], [0, 1]], "advantages": [[0.0, 1.25], [0.0, -0.75]]}
    pq.write_table(pa.table(rows), directory / "experience.parquet")


@pytest.fixture(scope="module")
def record(world):
    def train(context):
        world.tokenizer.save_pretrained(context.output)
        (context.output / "rl.json").write_text(json.dumps(sample_rl(3).record))
        for step in (1, 2, 3):
            _write_step(world, context.output / "sidecar" / "rollouts" / f"step-{step:06d}")
        return StageResult()

    def select(context):
        reasons = {"task_id": ["a", "b", "c"], "reason": [None, "too_easy", None]}
        pq.write_table(pa.table(reasons), context.output / "selection.parquet")
        return StageResult()

    refs = {
        "select": world.run("select", ArtifactKind.TASKS, select, {}),
        "rl": world.run("rl", ArtifactKind.MODEL, train, {"tasks": world.tasks_ref}),
    }
    stages = [{"name": name, "artifact": ref.model_dump(mode="json")} for name, ref in refs.items()]
    config = world.config.model_dump(mode="json")
    return {"run_id": "r", "status": "completed", "stages": stages, "config": config}


def test_the_section_and_the_rollouts_of_first_and_last_step_are_collected(world, record) -> None:
    data = collect(record, world.store)
    assert data.notes == ()
    assert data.rl is not None
    assert data.rl.selection == {"kept": 2, "too_easy": 1}
    groups = [view.group for view in data.trajectories]
    assert groups == ["RL step 1, right", "RL step 1, wrong", "RL step 3, right", "RL step 3, wrong"]
    won, lost = data.trajectories[:2]
    assert (won.id, won.trained) == ("won", "were trained with an advantage of +1.25")
    assert lost.trained.endswith("-0.75")
    assert won.expected == world.tasks[0].answers  # tasks of the model's lineage: the run made none
    assert all(token.trained for element in won.elements for token in element.tokens)
    assert "RL step 3, wrong" in render(data)


def test_a_broken_record_costs_only_its_section(world, record) -> None:
    def broken(context):
        world.tokenizer.save_pretrained(context.output)
        (context.output / "rl.json").write_text("[]")
        return StageResult()

    artifact = world.run("broken", ArtifactKind.MODEL, broken, {}).model_dump(mode="json")
    data = collect({**record, "stages": [{"name": "rl", "artifact": artifact}]}, world.store)
    assert data.rl is None
    assert any("reinforcement learning" in note for note in data.notes)
    assert render(data)
