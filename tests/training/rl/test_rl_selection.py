"""The stage select: bands of pass rates and the gate of closed-book answers, in a real store with scripted engines."""

import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.append(str(Path(__file__).parents[2] / "evaluation"))

from evaluation_fakes import ScriptedEngine, World

from afm_core.config import ConfigError, RunConfig, SelectionConfig
from afm_core.data import Split, tasks_from_table
from afm_core.engines import FinishReason, Generation
from afm_core.evaluation import rows_from_table
from afm_core.evaluation.sampling import stratified_sample
from afm_core.rollout.episode import seed_of
from afm_core.store import ArtifactKind, StageInterrupted, StageResult, read_table
from afm_core.training.rl import selection
from afm_core.training.rl.selection import Attempts, Dropped, attempts_of, judge_task, select

SAMPLES = 4


class Dice(ScriptedEngine):
    """Right in the first `right[question]` of a task's samples, whenever and however often these are asked for."""

    def __init__(self, world, right):
        super().__init__(world.tokenizer, {})
        tasks = world.split(Split.TRAIN)
        self.right = right
        self.asked = set()
        self.answers = world.book()
        self.sample_of = {
            seed_of(0, task.id, sample, turn): (task.question, sample)
            for task in tasks
            for sample in range(SAMPLES)
            for turn in (1, 2)
        }

    def _answer(self, request):
        question, sample = self.sample_of[request.seed]
        self.asked.add(question)
        right = sample < self.right.get(question, 0)
        self.book = {question: self.answers[question]} if right else {}
        return super()._answer(request)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("world"))
    made.models = {name: made.put_model(name) for name in ("policy", "base")}
    return made


@pytest.fixture
def engines(world, monkeypatch):
    """Gives the engines that a test puts in, by the model's name; counts how often one was opened."""
    given = {"opened": []}
    names = {ref.digest: name for name, ref in world.models.items()}

    def open_engine(config, path, digest):
        given["opened"].append(names[digest])
        return given[names[digest]]

    monkeypatch.setattr("afm_core.engines.open_engine", open_engine)
    return given


def run(world, key, stopping=None, sections=None, **config):
    world.config = RunConfig.model_validate({"profile": "test", "selection": config, **(sections or {})})
    inputs = {"tasks": world.tasks_ref, "corpus": world.corpus, **world.models}
    ref = world.run("select", ArtifactKind.TASKS, select, inputs, key=key, stopping=stopping)
    return world.store.open(ref)


def rows_of(artifact):
    return {row["task_id"]: row for row in read_table(artifact.path / "selection.parquet").to_pylist()}


def tasks_of(artifact):
    return tasks_from_table(read_table(artifact.path / "tasks.parquet"))


def test_tasks_stay_by_pass_rate_and_unless_known_by_heart(world, engines):
    train = world.split(Split.TRAIN)
    right = {task.question: number % 5 for number, task in enumerate(train)}
    known = {task.question: 2 * (number % 2) for number, task in enumerate(train)}
    engines["policy"], engines["base"] = Dice(world, right), Dice(world, known)
    config = {"samples": 4, "closed_book_samples": 4, "maximum_known": 0.4, "minimum_pass_rate": 0.25}
    artifact = run(world, "bands", **config)
    rows, kept = rows_of(artifact), {task.id: task for task in tasks_of(artifact)}
    assert set(rows) == {task.id for task in train}
    for number, task in enumerate(train):
        row, rate = rows[task.id], (number % 5) / 4
        expected = Dropped.KNOWN if number % 2 else {0: Dropped.TOO_HARD, 1: Dropped.SOLVED}.get(rate)
        assert (row["reason"], row["kept"]) == (expected, expected is None)
        assert row["known_rate"] == (number % 2) / 2
        assert (row["pass_rate"], row["episodes"]) == ((None, 0) if number % 2 else (rate, 4))
        assert (task.id in kept) is row["kept"]
        if row["kept"]:
            assert kept[task.id].difficulty.solve_rate == rate
    metrics = artifact.manifest.metrics
    assert metrics["pool"] == metrics["kept"] + sum(metrics[f"dropped/{reason}"] for reason in Dropped) == len(train)
    assert engines["opened"] == ["base", "policy"]
    assert engines["policy"].asked == {task.question for task in train[::2]}
    assert engines["policy"].closed
    assert engines["base"].closed
    attempts = rows_from_table(read_table(artifact.path / "sidecar" / "episodes.parquet"))
    assert len(attempts) == len({row.id for row in attempts}) == 4 * len(train) + 4 * len(train[::2])


def test_with_both_gates_off_no_engine_is_opened_and_the_pool_is_kept(world, engines):
    artifact = run(world, "off", pool=5)
    train = world.split(Split.TRAIN)
    assert tasks_of(artifact) == stratified_sample(train, 5, 0)
    assert engines["opened"] == []
    assert all(row["kept"] and row["pass_rate"] is None for row in rows_of(artifact).values())
    assert {task.id for task in tasks_of(run(world, "all"))} == {task.id for task in train}


def test_a_stopped_selection_goes_on_and_ends_with_the_same_digest(world, engines, monkeypatch):
    monkeypatch.setattr(selection, "_EPISODES_A_SHARD", 16)
    right = {task.question: 2 for task in world.split(Split.TRAIN)}
    engines["policy"] = whole = Dice(world, right)
    digest = run(world, "whole", samples=4).ref.digest
    stopping, engines["policy"] = threading.Event(), Dice(world, right)
    step, steps = engines["policy"].step, []

    def stop_in_the_second_shard():
        steps.append(1)
        if len(steps) == 5:
            stopping.set()
        return step()

    engines["policy"].step = stop_in_the_second_shard
    with pytest.raises(StageInterrupted):
        run(world, "stopped", stopping, samples=4)
    assert engines["policy"].closed
    engines["policy"] = Dice(world, right)
    assert run(world, "stopped", samples=4).ref.digest == digest
    assert 0 < engines["policy"].requests < whole.requests


def test_episodes_that_fail_are_unscored_and_never_too_hard(world, engines):
    train = world.split(Split.TRAIN)
    engines["policy"] = Dice(world, {task.question: 2 for task in train})
    answer, broken = engines["policy"]._answer, train[0].question

    def fail_one(request):
        question, sample = engines["policy"].sample_of[request.seed]
        if question == broken or (question == train[1].question and sample > 1):
            return Generation(request.id, (), (), "", FinishReason.ERROR, error="out of memory")
        return answer(request)

    engines["policy"]._answer = fail_one
    rows = rows_of(run(world, "failing", samples=4, minimum_pass_rate=0.1, maximum_pass_rate=1.0))
    assert rows[train[0].id]["reason"] == Dropped.UNSCORED
    assert (rows[train[1].id]["pass_rate"], rows[train[1].id]["episodes"]) == (1.0, 2)
    assert (rows[train[2].id]["pass_rate"], rows[train[2].id]["episodes"]) == (0.5, 4)


def test_an_empty_selection_says_which_gate_took_how_many(world, engines):
    engines["policy"] = Dice(world, {})
    count = len(world.split(Split.TRAIN))
    with pytest.raises(ConfigError, match=rf"of {count} in the pool {count} too_hard.*selection\.minimum_pass_rate"):
        run(world, "empty", samples=4, minimum_pass_rate=0.1)


def test_an_outage_is_named_when_it_leaves_nothing(world, engines):
    engines["policy"] = Dice(world, {})
    engines["policy"]._answer = lambda request: Generation(request.id, (), (), "", FinishReason.ERROR, error="down")
    with pytest.raises(ConfigError, match=r"unscored; mend the tools or the grader: attempts ended as \d+ aborted"):
        run(world, "outage", samples=4)


def test_a_tiny_model_is_measured_the_same_twice(world, monkeypatch):
    """The real engine, sampling: a random model passes nothing, and every attempt is accounted for."""
    from afm_core.training.tiny import make_tiny

    def write(context):
        make_tiny(world.documents, context.output, 0)
        return StageResult()

    tiny = world.run("tiny", ArtifactKind.MODEL, write, {}, key="key-tiny")
    monkeypatch.setattr(world, "models", {"policy": tiny, "base": tiny})
    sections = {"agent": {"budget": {"turn_tokens": 8, "turns": 2}}, "engine": {"threads": 1, "slots": 4}}
    config = {"pool": 3, "samples": 2, "closed_book_samples": 2, "sections": sections}
    first, again = (run(world, f"tiny-{n}", **config) for n in range(2))
    assert first.ref.digest == again.ref.digest
    assert {(row["pass_rate"], row["known_rate"], row["episodes"]) for row in rows_of(first).values()} == {(0, 0, 2)}
    attempts = rows_from_table(read_table(first.path / "sidecar" / "episodes.parquet"))
    assert len(attempts) == 3 * 2 * 2
    assert all(row.reward == 0 and 0 < row.sampled_tokens <= 16 for row in attempts)


@given(
    known=st.none() | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    solved=st.none() | st.tuples(st.integers(0, 4), st.integers(0, 4)),
    low=st.sampled_from([0.0, 0.25, 0.5]),
    high=st.sampled_from([0.5, 0.75, 1.0]),
)
def test_a_task_stays_or_has_one_reason(known, solved, low, high):
    config = SelectionConfig(minimum_pass_rate=low, maximum_pass_rate=high)
    given_known, given_solved = (
        None if counts is None else {"t": Attempts(max(counts), min(counts))} for counts in (known, solved)
    )
    row = judge_task("t", config, given_known, given_solved)
    assert row.kept is (row.reason is None)
    if row.kept:
        assert row.known_rate is None or row.known_rate <= config.maximum_known
        assert row.pass_rate is None or low <= row.pass_rate <= high
        assert known is None or max(known) > 0
        assert solved is None or max(solved) > 0
    if row.reason is Dropped.KNOWN:
        assert row.known_rate > config.maximum_known
        assert row.episodes == 0


def test_attempts_without_a_verdict_are_no_attempts():
    assert attempts_of([]) == {}
    assert Attempts(0, 0).rate is None
