"""The stage `rollout` over a real store: all rollouts kept, one chosen, gold unseen, no finished rollout lost."""

import asyncio
import json
import threading

import pytest
from team_script import Script, role_of
from test_teach_stage import put

from afm_core.config import ConfigError, RunConfig
from afm_core.data import (
    AgentTask,
    Status,
    Verifier,
    documents_table,
    tasks_table,
    trajectories_from_table,
)
from afm_core.engines.backbone import BackboneGone, CallStatus
from afm_core.store import ArtifactKind, StageInterrupted, StageSpec, open_store, read_table
from afm_core.teacher import segment_events
from afm_core.teacher.team import stage
from afm_core.teacher.team.stage import rollout
from afm_core.teacher.team.tables import read_recordings

ENDPOINT = {"name": "one", "base_url": "http://127.0.0.1:9/v1", "model": "m"}


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"), tmp_path / "cache")


def spec_of(store, documents, tasks, **team):
    config = RunConfig.model_validate({"profile": "test", "team": {"endpoints": [ENDPOINT], **team}})
    return StageSpec(
        stage="rollout",
        config=config.model_dump(mode="json"),
        inputs={
            "corpus": put(store, ArtifactKind.CORPUS, "a", documents=documents_table(documents)),
            "tasks": put(store, ArtifactKind.TASKS, "b", tasks=tasks_table(tasks)),
        },
        store_uri=store.uri,
    )


@pytest.fixture
def play(store, monkeypatch):
    """Run the stage as one attempt with a script for a server; returns (artifact, metrics)."""

    def run(spec, script, key="c", **options):
        class Served:
            def __init__(self, endpoints):
                self.complete = script.complete

            async def __aenter__(self):
                return self

            async def __aexit__(self, *_):
                pass

        monkeypatch.setattr(stage, "BackbonePool", Served)
        kind, work = ArtifactKind.TRAJECTORIES, store.cache / "work"
        with store.attempt(
            key=key * 64, spec=spec, kind=kind, sections=("team", "agent"), scratch=work, **options
        ) as attempt:
            result = rollout(attempt)
            return store.open(attempt.commit(result)), result.metrics

    return run


def trajectories(artifact, name="trajectories"):
    return trajectories_from_table(read_table(artifact.path / f"{name}.parquet"))


def test_every_rollout_is_kept_and_the_chosen_one_goes_on(store, documents, play, single_task, held_out_task):
    """Rollouts 0 and 2 answer wrongly: the scorer chooses 1, and answer and trajectory are of that one."""
    script = Script()
    models = [{**ENDPOINT, "name": name, "model": name} for name in ("weak", "strong")]
    script.replaced["suggest"] = lambda request: {"answer": "Nairobi" if request.model == "strong" else "Lima"}
    spec = spec_of(
        store, documents, [single_task, held_out_task], endpoints=models, models=["weak", "strong"], rollouts=3
    )
    artifact, metrics = play(spec, script)
    everything, (chosen,) = trajectories(artifact, "rollouts"), trajectories(artifact)
    assert {one.task_id for one in everything} == {single_task.id}
    assert sorted((one.provenance["rollout"], one.answer, one.reward) for one in everything) == [
        ("0", "Lima", 0.0),
        ("1", "Nairobi", 1.0),
        ("2", "Lima", 0.0),
    ]
    assert (chosen.provenance["rollout"], chosen.answer, chosen.segments[-1].text) == ("1", "Nairobi", "Nairobi")
    assert chosen.source == "team:strong"
    assert (metrics["tasks"], metrics["rollouts"], metrics["correct"], metrics["solved_tasks"]) == (1, 3, 1, 1)
    assert (metrics["status/completed"], metrics["chosen_by/scorer"], metrics["tips"]) == (3, 1, 1)
    by_id = {one.id: one for one in read_recordings(artifact.path)}
    mine = by_id[f"{single_task.id}-r1"]
    assert set(segment_events(chosen)) <= {event.id for event in mine.events}
    assert mine.answer == chosen.answer


def test_the_record_can_be_read_back_whole(store, documents, play, single_task):
    script = Script()
    artifact, metrics = play(spec_of(store, documents, [single_task], rollouts=2), script)
    recordings = list(read_recordings(artifact.path))
    sent = [event.exchange.request for one in recordings for event in one.events if event.exchange]
    assert sorted(one.digest() for one in sent) == sorted(one.digest() for one in script.requests)
    assert metrics["model_calls"] == len(sent) == metrics["attempts/ok"]
    calls = [event.call for one in recordings for event in one.events if event.call]
    assert {one.argument for one in calls} == {"capital of Kenya"}
    assert [one for one in recordings if one.without_times() != one] == []
    times = read_table(artifact.path / "sidecar/times/00000.parquet")
    assert times.column("id").to_pylist() == read_table(artifact.path / "events/00000.parquet").column("id").to_pylist()
    assert json.loads(times.column("attempts").to_pylist()[0])[0]["endpoint"] == "scripted"


def test_of_several_right_rollouts_as_many_are_kept_as_wanted(store, documents, play, single_task):
    artifact, metrics = play(spec_of(store, documents, [single_task], rollouts=4, keep=3), Script())
    assert len(trajectories(artifact)) == 3
    assert metrics["chosen_by/order"] == 1
    assert len(trajectories(artifact, "rollouts")) == 4


def test_gold_answers_are_in_no_request(store, documents, play):
    """Planted in answers, solution path and verifier; every request of every role is searched."""
    gold = "Xyzzygold"
    task = AgentTask.create(
        "What is the capital of Kenya?",
        (gold, f"{gold} city"),
        Verifier(payload={"rubric": gold}),
        solution=({"relation": "capital", "subject": "Kenya", "value": gold},),
        component="kenya",
    )
    other = AgentTask.create("What is the time zone of Eldoret?", (f"{gold} zone",), component="kenya")
    checks = iter([1, 4] * 50)
    script = Script(
        check=lambda _: {"check": "Hm.", "score": next(checks)},
        review=lambda request: {
            "score": 2 if "(nothing yet)" in str(request.messages) else 9,
            "grade": "fair",
            "assessment": "So.",
            "lesson": "More.",
        },
    )
    spec = spec_of(
        store,
        documents,
        [task, other],
        rollouts=2,
        judge_model="m",
        shard_tasks=1,
        tips=3,
        memory_characters=1,
        memory_recent=1,
    )
    _, metrics = play(spec, script)
    roles = {role_of(one) for one in script.requests}
    assert roles >= {"plan", "revise", "turn", "review", "suggest", "check", "tip"}
    assert metrics["rollouts"] == 4
    assert not any(gold in json.dumps(one.body()) for one in script.requests)


def test_tips_of_a_shard_are_shown_from_the_next_one_on(store, documents, play, single_task, comparison_task):
    script = Script(suggest=lambda _: {"answer": "wrong"})
    tasks = sorted([single_task, comparison_task], key=lambda one: one.id)
    artifact, metrics = play(spec_of(store, documents, tasks, rollouts=1, shard_tasks=1), script)
    shown = {one.question.task_id: one.tips for one in read_recordings(artifact.path)}
    assert shown == {tasks[0].id: (), tasks[1].id: ("Look for the capital first.",)}
    assert read_table(artifact.path / "tips.parquet").num_rows == 2
    assert metrics["tips"] == 1


def test_every_task_ends_with_a_status_and_the_counts_add_up(store, documents, play, single_task, comparison_task):
    endings = iter([CallStatus.SERVER_ERROR, "nonsense", "nonsense", "nonsense"])
    script = Script()
    script.replaced["plan"] = lambda request: next(endings, None) or script.plan(request)
    spec = spec_of(store, documents, [single_task, comparison_task], rollouts=3, concurrency=1, tips_per_shard=0)
    artifact, metrics = play(spec, script)
    statuses = {name: count for name, count in metrics.items() if name.startswith("status/")}
    assert statuses == {"status/aborted": 1, "status/parse_error": 1, "status/completed": 4}
    assert sum(statuses.values()) == metrics["rollouts"] == 6
    assert sum(count for name, count in metrics.items() if name.startswith("chosen_by/")) == metrics["tasks"] == 2
    attempts = sum(count for name, count in metrics.items() if name.startswith("attempts/"))
    assert attempts == metrics["model_calls"] == len(script.requests)
    recordings = list(read_recordings(artifact.path))
    assert sorted(one.status for one in recordings) == sorted(
        [Status.ABORTED, Status.PARSE_ERROR] + [Status.COMPLETED] * 4
    )
    assert len({one.id for one in recordings}) == 6


def test_a_stopped_stage_plays_no_finished_rollout_again_and_gives_the_same_bytes(
    store, documents, play, single_task, comparison_task
):
    spec = spec_of(store, documents, [single_task, comparison_task], rollouts=3, concurrency=2)
    whole, _ = play(spec, Script(), key="d")
    stopping = threading.Event()
    first = Script()

    def check(request):
        if first.counts["check"] == 3:
            stopping.set()
        return {"check": "The notes state it.", "score": 4}

    class Slow(Script):
        async def complete(self, request):
            if stopping.is_set():
                await asyncio.sleep(5)  # nothing ends any more before the stage stops
            return await first.complete(request)

    first.replaced["check"] = check
    with pytest.raises(StageInterrupted):
        play(spec, Slow(), stopping=stopping)
    second = Script()
    resumed, metrics = play(spec, second)
    assert resumed.ref.digest == whole.ref.digest
    answered = [one.sampling.seed for one in first.requests if role_of(one) == "check"]
    asked_again = {one.sampling.seed for one in second.requests}
    assert len(answered) >= 3
    assert not asked_again & set(answered[:2])
    assert metrics["rollouts"] == 6
    assert metrics["model_calls"] > len(second.requests)


def test_an_outage_fails_the_stage_and_keeps_what_was_finished(store, documents, play, single_task):
    spec = spec_of(store, documents, [single_task], rollouts=3, concurrency=1)

    class Dying(Script):
        async def complete(self, request):
            if self.counts["check"] == 2:
                raise BackboneGone("away")
            return await super().complete(request)

    with pytest.raises(BackboneGone):
        play(spec, Dying())
    again = Script()
    play(spec, again)
    assert again.counts["plan"] == 1


def test_what_infrastructure_spoiled_is_played_again_by_the_next_attempt(store, documents, play, single_task):
    spec = spec_of(store, documents, [single_task], rollouts=3, concurrency=1)

    class Failing(Script):
        async def complete(self, request):
            if self.counts["plan"] == 2 and role_of(request) == "plan":
                raise BackboneGone("away")
            return await super().complete(request)

    failing = Failing(suggest=lambda _: CallStatus.SERVER_ERROR)
    with pytest.raises(BackboneGone):
        play(spec, failing)
    again = Script()
    _, metrics = play(spec, again)
    assert again.counts["plan"] == 3
    assert metrics["status/completed"] == 3


def test_without_an_endpoint_the_stage_says_what_is_missing(store, documents, play, single_task):
    with pytest.raises(ConfigError, match=r"team\.endpoints"):
        play(spec_of(store, documents, [single_task], endpoints=[]), Script())


def test_a_tool_that_the_profile_has_no_place_for_is_refused(store, documents, play, single_task):
    spec = spec_of(store, documents, [single_task])
    spec.config["agent"] |= {"grammar": "mhqa"}
    script = Script()
    with pytest.raises(ConfigError, match="does not belong to the profile mhqa"):
        play(spec, script)
    assert not script.requests


def test_figures_that_are_zero_are_there_too(store, documents, play, single_task):
    _, metrics = play(spec_of(store, documents, [single_task], rollouts=1), Script(suggest=lambda _: {"answer": "no"}))
    assert (metrics["correct"], metrics["solved_tasks"], metrics["cost"], metrics["invalid"]) == (0, 0, 0, 0)
