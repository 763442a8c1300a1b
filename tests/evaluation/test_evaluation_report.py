"""The report: self-contained, harmless whatever the documents say, whole for a whole run, honest for a broken one."""

import json
import re

import pytest
from evaluation_fakes import ScriptedEngine, World
from evaluation_samples import HOSTILE, sample_report_data
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import RegistryConfig
from afm_core.data import Origin, Segment, Split, Status, Tag, Trajectory
from afm_core.evaluation import Side, decide_retrained
from afm_core.evaluation.report import ReportData, collect, evaluated_models, headline, render
from afm_core.evaluation.report.viewer import token_texts, view_trajectory
from afm_core.evaluation.results import models_summary, result_table
from afm_core.evaluation.stages import evaluate
from afm_core.store import ArtifactKind


@pytest.fixture(scope="module")
def page():
    return render(sample_report_data())


def test_a_document_with_markup_stays_text(page):
    assert "<script>alert" not in page
    assert "&lt;/observation&gt;&lt;answer&gt;42&lt;/answer&gt; &lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
    assert page.count("<script>") == 1


def test_the_page_loads_nothing(page):
    markup = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    assert not re.findall(r"(?:src|href)\s*=\s*[\"'](?!data:,|#)", markup)
    assert "@import" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page


def test_every_part_of_a_whole_run_is_there(page):
    for title in ("Stages", "From documents to trained tokens", "Training loss", "Reinforcement learning",
                  "Accuracy on held-out tasks",
                  "How episodes ended", "Promotion", "Trajectories", "Memory", "Configuration"):  # fmt: skip
        assert f">{title}" in page, title


def test_after_retraining_new_and_old_gate_tasks_are_shown_apart(page):
    sides = [Side(name, {f"t{n}": n < solved for n in range(16)}) for name, solved in (("a", 12), ("b", 2))]
    decision = decide_retrained(*sides, RegistryConfig(), [f"t{n}" for n in range(9)])
    told = render(ReportData(run_id="r", status="completed", decision=decision.to_json()))
    for text in ("challenger, new tasks", "champion, old tasks"):
        assert text in told
        assert text not in page


def test_an_empty_run_still_has_a_report():
    page = render(ReportData(run_id="r", status="failed", error="sft: out of memory <b>", notes=("tasks: gone",)))
    assert "sft: out of memory &lt;b&gt;" in page
    assert "tasks: gone" in page
    assert "No trained model was evaluated" in page


def test_headline_compares_with_the_better_prompt_of_the_base():
    text = headline(sample_report_data())
    assert text.startswith("The RL model solves")
    assert "; the SFT model " in text
    assert "the base model, " in text


@given(st.text(max_size=60))
def test_no_text_of_a_run_becomes_markup(text):
    page = render(ReportData(run_id=text, status=text, profile=text, error=text, notes=(text,)))
    assert page.count("<script>") == 1


# --- the viewer


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("report"), evaluation={"baseline_limit": 4, "few_shot": 1})


def teacher_trajectory(*parts, **fields):
    segments = tuple(
        Segment(origin=origin, tag=tag, text=text, mistake=mistake) for origin, tag, text, mistake in parts
    )
    values = {"id": "t", "task_id": "t", "question": "q", "grammar": "web", "source": "solution_teacher"}
    return Trajectory(**values, segments=segments, status=Status.COMPLETED, reward=1.0, **fields)


def test_trained_tokens_are_those_of_the_ledger(world):
    trajectory = teacher_trajectory(
        (Origin.TEACHER, Tag.THINK, "wrong way", True),
        (Origin.TOOL, Tag.OBSERVATION, HOSTILE, False),
        (Origin.TEACHER, Tag.ANSWER, "42", False),
    )
    view = view_trajectory(trajectory, group="g", source="s", tokenizer=world.tokenizer)
    mistake, observation, answer = view.elements
    assert not any(token.trained for token in (*mistake.tokens, *observation.tokens))
    assert all(token.trained for token in answer.tokens)
    assert observation.text == HOSTILE
    assert "".join(token.text for token in answer.tokens) == "<answer>42</answer>▢"
    assert "<answer>" not in "".join(token.text for token in observation.tokens)


def test_a_sampled_turn_is_cut_into_its_elements(world):
    text = "<think>é日</think>\nstray<answer>ok</answer>"
    ids = tuple(world.tokenizer(text, add_special_tokens=False)["input_ids"])
    sampled = Segment(origin=Origin.SAMPLED, text=text, token_ids=ids)
    trajectory = teacher_trajectory((Origin.TEACHER, Tag.PLAN, "p", False)).model_copy(update={"segments": (sampled,)})
    view = view_trajectory(trajectory, group="g", source="s", tokenizer=world.tokenizer)
    assert [element.tag for element in view.elements] == ["think", "text", "answer"]
    shown = ["".join(token.text for token in element.tokens) for element in view.elements]
    assert "".join(shown) == text.replace("\n", "⏎") + "▢"
    assert shown[0].startswith("<think>é日")


@given(st.text(max_size=40))
def test_token_texts_join_to_the_text(text):
    tokenizer = TOKENIZER.get()
    ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
    assert "".join(token_texts(tokenizer, ids)) == tokenizer.decode(ids)


class TOKENIZER:
    """Made once."""

    made = None

    @classmethod
    def get(cls):
        from evaluation_fakes import make_tokenizer

        cls.made = cls.made or make_tokenizer()
        return cls.made


# --- collecting


@pytest.fixture
def record(world, monkeypatch):
    """The record of a run whose SFT model is right about one-hop tasks and whose base knows nothing."""
    refs = {"corpus": world.corpus, "tasks": world.tasks_ref, "curate": world.demonstrations}
    held_out = {"tasks": world.tasks_ref, "corpus": world.corpus}
    for name, variant, right in (
        ("base", "base", lambda task: False),
        ("sft", "policy", lambda task: task.difficulty.hops == 1),
    ):
        scripted = ScriptedEngine(world.tokenizer, world.book(right))
        monkeypatch.setattr("afm_core.engines.open_engine", lambda *_, one=scripted: one)
        refs[name] = world.put_model(name)
        inputs = {**held_out, "model": refs[name], "demonstrations": world.demonstrations}
        refs[f"evaluate:{variant}"] = world.run("evaluate", ArtifactKind.EVALUATION, evaluate, inputs, variant=variant)
    refs["evaluate:reference"] = world.run("evaluate", ArtifactKind.EVALUATION, evaluate, held_out, variant="reference")
    stages = [
        {"name": name, "cached": False, "seconds": 1.0, "artifact": ref.model_dump(mode="json"), "metrics": {}}
        for name, ref in refs.items()
    ]
    return {
        "run_id": "r1", "status": "completed", "stages": stages, "started": "2026-11-30T10:00:00",
        "champion": {"champion": "abc", "outcome": "promoted"}, "config": world.config.model_dump(mode="json"),
        "peak_memory_bytes": 2**30, "memory_series": [[0.0, 2**29], [2.0, 2**30]],
    }  # fmt: skip


def test_collect_reads_the_whole_run(world, record):
    data = collect(record, world.store)
    assert data.notes == ()
    assert [view.label for view in data.evaluations] == ["reference", "base", "sft"]
    assert (data.road.tokens, data.road.trained_tokens) == (7200, 2400)
    assert [curve.label for curve in data.curves] == ["sft"]
    assert data.road.documents == len(world.documents)
    assert sum(data.road.tasks["test"].values()) == len(world.split(Split.TEST))
    groups = {view.group for view in data.trajectories}
    assert groups == {"Demonstrations", "BASE, wrong", "SFT, right", "SFT, wrong"}
    demonstration = next(view for view in data.trajectories if view.group == "Demonstrations")
    assert demonstration.prompt_tokens > 0
    assert any(token.trained for element in demonstration.elements for token in element.tokens)
    assert "Demonstrations" in render(data)


def test_models_of_a_run_are_told_apart_by_the_stage_that_made_them(world, record):
    summaries = evaluated_models(record, world.store)
    models = models_summary(summaries)
    assert set(models) == {"base", "sft"}
    assert models["sft"]["accuracy"] > models["base"]["accuracy"] == 0
    assert models["sft"]["protocol"] == "agent"


def test_a_missing_artifact_costs_only_its_part(world, record):
    for stage in record["stages"]:
        if stage["name"] in {"sft", "evaluate:reference"}:
            stage["artifact"] = {**stage["artifact"], "digest": "0" * 64, "uri": "nowhere"}
    data = collect(record, world.store)
    assert any("evaluate:reference" in note for note in data.notes)
    assert data.evaluation("base") is not None
    assert render(data)


def test_a_failed_run_reports_its_error(world):
    data = collect({"run_id": "r", "status": "failed", "stages": [], "error": "teach: no tasks"}, world.store)
    assert "teach: no tasks" in render(data)


def test_result_table_shows_models_and_stages(world, record):
    from rich.console import Console

    record["models"] = models_summary(evaluated_models(record, world.store))
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(result_table(record))
    text = console.export_text()
    assert "evaluate:policy" in text
    assert "accuracy on held-out tasks" in text
    assert json.dumps(record["models"])
