"""Rejection sampling from a policy: the same choice and files as the team's, ids and log-probabilities as sampled."""

import threading

import pytest
from scripted_engine import ScriptedEngine
from test_teach_stage import put

from afm_core.config import RunConfig
from afm_core.data import Origin, documents_table, tasks_table, trajectories_from_table
from afm_core.store import ArtifactKind, StageInterrupted, StageSpec, open_store, read_table
from afm_core.teacher.policy import stage
from afm_core.teacher.policy.stage import sample


def turns(answer, query="capital of Kenya"):
    return [
        f"<think>t</think><plan>p</plan><think>t</think><web_search>{query}</web_search>",
        f"<think>t</think><suggested_answer>{answer}</suggested_answer><think>t</think><double_check>Score: 4"
        f"</double_check><answer>{answer}</answer>",
    ]


class Varied(ScriptedEngine):
    """Each session of a question gets the next of its scripts."""

    def submit(self, request):
        prompt = self.tokenizer.decode(request.prompt_ids)
        question = prompt.split("Question: ")[-1].split("\x02")[0]
        if request.session not in self.turn_of:
            self.sessions.setdefault(question, []).append(request.session)
        number = self.sessions[question].index(request.session)
        self.scripts = {question: self.attempts[number % len(self.attempts)]}
        super().submit(request)


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"), tmp_path / "cache")


@pytest.fixture
def run(store, documents, monkeypatch):
    """Run the stage on an engine; returns (artifact, metrics)."""

    inputs = {}

    def play(engine, tasks, key="c", **options):
        monkeypatch.setattr(stage, "open_engine", lambda config, directory, version: engine)
        team = {"rollouts": 3, "temperature": 1.0, "shard_tasks": 1}
        agent = {"budget": {"turn_tokens": 400, "total_tokens": 3000}}
        config = RunConfig.model_validate({"profile": "test", "team": team, "agent": agent})
        if not inputs:
            inputs["corpus"] = put(store, ArtifactKind.CORPUS, "a", documents=documents_table(documents))
            inputs["tasks"] = put(store, ArtifactKind.TASKS, "b", tasks=tasks_table(tasks))
            inputs["policy"] = put(store, ArtifactKind.MODEL, "e", weights=tasks_table(tasks))
        document = config.model_dump(mode="json")
        spec = StageSpec(stage="sample", config=document, inputs=inputs, store_uri=store.uri)
        kind, work, sections = ArtifactKind.TRAJECTORIES, store.cache / "work", ("team", "agent", "engine")
        with store.attempt(key=key * 64, spec=spec, kind=kind, sections=sections, scratch=work, **options) as attempt:
            result = sample(attempt)
            return store.open(attempt.commit(result)), result.metrics

    return play


def engine_of(*attempts):
    engine = Varied({})
    engine.attempts, engine.sessions = attempts, {}
    return engine


def table(artifact, name):
    return trajectories_from_table(read_table(artifact.path / f"{name}.parquet"))


def test_right_samples_are_chosen_and_all_are_kept(run, single_task):
    engine = engine_of(turns("Lima"), turns("Nairobi"), turns("Mombasa"))
    artifact, metrics = run(engine, [single_task])
    (chosen,), everything = table(artifact, "trajectories"), table(artifact, "rollouts")
    assert (chosen.answer, chosen.reward, chosen.provenance["rollout"]) == ("Nairobi", 1.0, "1")
    assert sorted(one.answer for one in everything) == ["Lima", "Mombasa", "Nairobi"]
    sampled = [one for one in chosen.segments if one.origin is Origin.SAMPLED]
    assert all(len(one.token_ids) == len(one.logprobs) for one in sampled)
    assert {one.temperature for one in engine.requests} == {1.0}
    assert (metrics["rollouts"], metrics["correct"], metrics["chosen_by/scorer"]) == (3, 1, 1)
    assert engine.closed


def test_among_right_samples_the_shortest_legal_one_is_chosen(run, single_task):
    long = turns("Nairobi", "capital of Kenya")
    longer = [long[0], long[0].replace("<plan>p</plan>", ""), long[1]]
    artifact, metrics = run(engine_of(longer, long, longer), [single_task])
    (chosen,) = table(artifact, "trajectories")
    assert chosen.provenance["rollout"] == "1"
    assert metrics["chosen_by/order"] == 1


def test_a_stopped_stage_goes_on_at_the_next_shard_with_the_same_bytes(run, single_task, comparison_task):
    tasks = [single_task, comparison_task]
    whole, _ = run(engine_of(turns("Nairobi")), tasks, key="d")
    stopping = threading.Event()
    first, second = engine_of(turns("Nairobi")), engine_of(turns("Nairobi"))
    told = []

    def stop_after_the_first_shard(done, total, message):
        told.append((done, total))
        if told.count((3, 6)) == 2:  # by its last episode, and when it is sealed
            stopping.set()

    with pytest.raises(StageInterrupted):
        run(first, tasks, stopping=stopping, progress=stop_after_the_first_shard)
    resumed, metrics = run(second, tasks)
    assert len(first.sessions) == len(second.sessions) == 1
    assert resumed.ref.digest == whole.ref.digest
    assert metrics["rollouts"] == 6
