"""`afm eval`: given answers are scored by the same rules, and the user's mistakes are named."""

import json

import pytest
from click.testing import CliRunner
from evaluation_fakes import ScriptedEngine, World

from afm_cli.eval import evaluate
from afm_core.config import ConfigError
from afm_core.data import AgentTask, Origin, Segment, Split, Status, Trajectory, Verifier, VerifierKind, tasks_table
from afm_core.evaluation.given import document_of, read_predictions, read_tasks, score_predictions
from afm_core.store import ArtifactKind

TASKS = [
    {"question": "What is the capital of France?", "answers": ["Paris"]},
    {"question": "How many legs has a spider?", "answer": "8"},
    {"question": "Who wrote Hamlet?", "answers": ["Shakespeare", "William Shakespeare"]},
]


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path):
    return write(tmp_path / "tasks.jsonl", TASKS)


def scored(data, tmp_path, rows):
    tasks = read_tasks(data)
    return score_predictions("world", tasks, read_predictions(write(tmp_path / "answers.jsonl", rows), tasks))


def test_tasks_keep_the_order_of_the_file(data):
    assert [task.question for task in read_tasks(data)] == [row["question"] for row in TASKS]


def test_predictions_by_index_and_by_id(data, tmp_path):
    last = read_tasks(data)[2].id
    document = scored(
        data,
        tmp_path,
        [{"index": 0, "prediction": "paris"}, {"index": 1, "prediction": 8}, {"id": last, "prediction": "Kyd"}],
    )
    assert [row["correct"] for row in document["rows"]] == [True, True, False]
    assert (document["n"], document["scored"], document["accuracy"]) == (3, 3, 2 / 3)
    assert document["status"] == {"completed": 3}


def test_a_task_without_a_prediction_is_wrong_and_counted_by_itself(data, tmp_path):
    document = scored(data, tmp_path, [{"index": 0, "prediction": "paris"}])
    assert (document["n"], document["scored"], document["accuracy"]) == (3, 3, 1 / 3)
    assert document["status"] == {"completed": 1, "no_prediction": 2}


def test_a_task_without_a_prediction_is_wrong_not_left_out(data, tmp_path):
    document = scored(data, tmp_path, [{"index": 0, "prediction": "Paris"}, {"index": 1, "prediction": None}])
    assert document["accuracy"] == document["accuracy_floor"] == 1 / 3
    assert document["rows"][2]["reason"] == "no prediction"


def test_a_policy_failure_is_wrong_and_a_tool_failure_is_unscored(data, tmp_path):
    document = scored(
        data,
        tmp_path,
        [
            {"index": 0, "prediction": "Paris"},
            {"index": 1, "prediction": "8", "status": "timeout"},
            {"index": 2, "prediction": None, "status": "tool_error"},
        ],
    )
    assert (document["scored"], document["accuracy"], document["accuracy_floor"]) == (2, 1 / 2, 1 / 3)
    assert document["status"] == {"completed": 1, "timeout": 1, "tool_error": 1}


def test_what_no_grader_can_judge_is_unscored_never_zero():
    task = AgentTask.create("q?", ("a",), Verifier(kind=VerifierKind.JUDGE))
    document = score_predictions("world", [task], {task.id: ("a", Status.COMPLETED)})
    assert document["accuracy"] is None
    assert document["rows"][0]["reward"] is None
    assert document["status"] == {"grader_error": 1}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"index": 3, "prediction": "x"}], "row 1, field index: 3 is outside 0 to 2"),
        ([{"id": "nope", "prediction": "x"}], "no task 'nope'"),
        ([{"prediction": "x"}], "give `id`"),
        ([{"index": True, "prediction": "x"}], "give `id`"),
        ([{"index": 0}], "expected"),
        ([{"index": 0, "prediction": ["x"]}], "field prediction"),
        ([{"index": 0, "prediction": "x", "status": "bored"}], "field status"),
        ([{"index": 0, "prediction": "x"}, {"index": 0, "prediction": "y"}], "row 2: task .* answered twice"),
    ],
)
def test_mistakes_in_predictions_are_named(data, tmp_path, rows, message):
    with pytest.raises(ConfigError, match=message):
        scored(data, tmp_path, rows)


@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_an_empty_predictions_file_is_a_mistake_not_zero_percent(data, tmp_path, text):
    path = tmp_path / "answers.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"answers\.jsonl: no predictions in it"):
        read_predictions(path, read_tasks(data))


def episode(task, number, reward):
    segment = Segment(origin=Origin.SAMPLED, text="x", token_ids=(1,))
    return Trajectory(
        id=f"{task.id}-{number}",
        task_id=task.id,
        question=task.question,
        grammar="web",
        source="model",
        segments=(segment,),
        status=Status.COMPLETED,
        reward=reward,
    )


def test_several_samples_a_task(data):
    first, second = tasks = read_tasks(data)[:2]
    episodes = [episode(first, 0, 1.0), episode(first, 1, 0.0), episode(second, 0, 0.0), episode(second, 1, 0.0)]
    document = document_of("world", tasks, episodes)
    assert (document["n"], document["samples"], document["accuracy"], document["pass_at_k"]) == (2, 2, 0.25, 0.5)


def test_command_line_scores(data, tmp_path):
    answers = write(tmp_path / "answers.jsonl", [{"index": 0, "prediction": "Paris"}])
    result = CliRunner().invoke(
        evaluate, ["score", "world", "--data", str(data), "--predictions", str(answers), "--json"]
    )
    document = json.loads(result.stdout)
    assert set(document) == {"benchmark", "n", "scored", "accuracy", "accuracy_floor", "interval", "status", "rows"}


def test_command_line_names_the_nearest_benchmark():
    result = CliRunner().invoke(evaluate, ["wrld", "--model", "x"])
    assert result.exit_code == 2
    assert "did you mean 'world'" in result.output


@pytest.mark.integration
def test_command_line_measures_a_model_on_held_out_tasks(tmp_path, monkeypatch):
    world = World(tmp_path / "world")
    scripted = ScriptedEngine(world.tokenizer, world.book())
    monkeypatch.setattr("afm_core.engines.open_engine", lambda *_: scripted)
    monkeypatch.setenv("AFM_STORE", world.store.uri)
    model = world.put_model("sft")
    # A selection for RL is a newer artifact of the same kind, without a test split: it is not the benchmark.
    world.put("select", ArtifactKind.TASKS, {"tasks": tasks_table(world.split(Split.TRAIN))})
    result = CliRunner().invoke(evaluate, ["world", "--model", model.digest[:10], "--limit", "5", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["n"], document["accuracy"]) == (5, 1.0)
    assert scripted.closed
