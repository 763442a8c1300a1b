"""The sampler in this process: order, weights that change between turns, errors that stay where they belong."""

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from afm_core.config import AgentConfig, Budget, EngineConfig
from afm_core.data import Origin, Status, Tag
from afm_core.engines import open_engine
from afm_core.rollout import Mode, RolloutStalled, run_episodes
from afm_core.rollout.local import LocalSampler
from afm_core.rollout.sampler import EpisodeRequest
from afm_core.tools.protocol import ToolResult, ToolStatus

sys.path.append(str(Path(__file__).parents[1] / "engines"))

SEARCH = "<think>t</think><plan>p</plan><think>t</think><web_search>query</web_search>"
FINISH = (
    "<think>t</think><suggested_answer>42</suggested_answer><think>t</think><double_check>Score: 4</double_check>"
    "<answer>42</answer>"
)
AGENT = AgentConfig(budget=Budget(turn_tokens=400, total_tokens=4000))


@dataclass(frozen=True)
class DirectoryWeights:
    """Weights that only exist as a name: the scripted engine has none."""

    version: str

    def state(self):
        raise AssertionError("this engine takes directories")

    def directory(self):
        return Path("/weights") / self.version


@dataclass(frozen=True)
class TensorWeights:
    """Weights of a model directory as tensors."""

    version: str
    source: Path

    def state(self):
        from safetensors.torch import load_file

        return load_file(self.source / "model.safetensors")

    def directory(self):
        raise AssertionError("this engine takes tensors")


@pytest.fixture
def sampler_of(engine_of, tool_of):
    """A sampler over scripts; the engine and the tool are its attributes."""

    def make(scripts, tool=None, slots=8, **options):
        tool = tool or tool_of()
        sampler = LocalSampler(engine_of(scripts, slots=slots), {Tag.WEB_SEARCH: tool}, AGENT, **options)
        sampler.tool = tool
        return sampler

    return make


def collect_all(sampler):
    done = {}
    while sampler.pending():
        done.update(sampler.collect(5.0))
    return done


def versions(trajectory):
    return [segment.policy_version for segment in trajectory.segments if segment.origin is Origin.SAMPLED]


def test_the_sampler_gives_what_run_episodes_gives(sampler_of, engine_of, tool_of, task_of):
    scripts = {f"q{n}": [SEARCH, FINISH] for n in range(5)}
    tasks = [task_of(question) for question in scripts]
    expected = run_episodes(tasks, engine_of(scripts), {Tag.WEB_SEARCH: tool_of()}, AGENT, temperature=0.5, seed=3)
    sampler = sampler_of(scripts, slots=2)
    sampler.start([EpisodeRequest(task.question, task, seed=3, temperature=0.5) for task in tasks])
    assert sampler.pending() == 5
    done = collect_all(sampler)
    assert [done[task.question] for task in tasks] == expected
    assert sampler.collect(9.0) == []
    sampler.close()
    assert sampler.engine.closed


def test_each_episode_has_its_own_seed_temperature_and_mode(sampler_of, task_of):
    sampler = sampler_of({"q": ["<answer>42</answer>"] * 3})
    task = task_of("q")
    sampler.start(
        [
            EpisodeRequest("greedy", task, temperature=0.0),
            EpisodeRequest("second", task, sample=1),
            EpisodeRequest("known", task, mode=Mode.CLOSED_BOOK),
        ]
    )
    done = collect_all(sampler)
    greedy, second, known = sampler.engine.requests
    assert (greedy.temperature, second.temperature, known.temperature) == (0.0, 1.0, 1.0)
    assert greedy.seed != second.seed
    assert known.stop == ("</answer>",)
    assert done["known"].provenance["mode"] == "closed_book"
    assert len({trajectory.id for trajectory in done.values()}) == 3


def test_weights_change_between_turns_and_every_segment_says_which_it_was(sampler_of, task_of):
    sampler = sampler_of({"q": [SEARCH, FINISH], "new": [FINISH]})
    sampler.start([EpisodeRequest("q", task_of("q"))])
    assert sampler.collect(0.0) == []  # one step: the first turn ended, its tool was called
    assert sampler.load(DirectoryWeights("model-2")) == "model-2"
    sampler.start([EpisodeRequest("new", task_of("new"))])
    done = collect_all(sampler)
    assert versions(done["q"]) == ["model-1", "model-2"]
    assert (done["q"].source, done["new"].source) == ("model-1", "model-2")
    assert done["q"].status is Status.COMPLETED


def test_a_load_waits_for_running_turns_and_holds_the_rest(sampler_of, task_of):
    """The engine asserts that nothing runs in it; three turns are running when the load is asked for."""
    sampler = sampler_of({f"q{n}": [SEARCH, FINISH] for n in range(3)})
    step, sampler.engine.step = sampler.engine.step, lambda: []
    sampler.start([EpisodeRequest(f"q{n}", task_of(f"q{n}")) for n in range(3)])
    sampler.collect(0.0)
    assert sampler.engine.pending() == 3
    sampler.engine.step = step
    sampler.load(DirectoryWeights("model-2"))
    done = collect_all(sampler)
    assert [versions(done[f"q{n}"]) for n in range(3)] == [["model-1", "model-2"]] * 3


def test_a_paused_sampler_stands_still_until_it_resumes(sampler_of, task_of):
    sampler = sampler_of({"q": [SEARCH, FINISH]})
    sampler.start([EpisodeRequest("q", task_of("q"))])
    sampler.collect(0.0)
    sampler.pause()
    assert [sampler.collect(0.0) for _ in range(3)] == [[], [], []]
    assert sampler.idle_seconds >= 0
    sampler.resume()
    assert collect_all(sampler)["q"].status is Status.COMPLETED


def test_slime_2078_one_of_sixteen_fails_and_fifteen_are_kept(sampler_of, task_of, caplog):
    scripts = {f"q{n}": [FINISH] for n in range(16)} | {"q7": [SEARCH, ValueError("x")]}
    sampler = sampler_of(scripts, slots=5)
    with caplog.at_level(logging.WARNING):
        sampler.start([EpisodeRequest(question, task_of(question)) for question in scripts])
        done = collect_all(sampler)
    assert [key for key, one in done.items() if one.status is not Status.COMPLETED] == ["q7"]
    assert len(done) == 16
    assert (done["q7"].status, done["q7"].reward) == (Status.ABORTED, None)
    assert "q7" in caplog.text
    assert "ValueError: x" in caplog.text


def test_tinker_945_what_raises_at_once_ends_its_episode_and_holds_nobody(sampler_of, task_of, tool_of, caplog):
    class Broken(tool_of):
        def call(self, argument):
            raise OSError("no backend")

    sampler = sampler_of({"tool": [SEARCH], "first": [KeyError("reset")], "well": [FINISH]}, tool=Broken())
    sampler.start([EpisodeRequest(question, task_of(question)) for question in ("tool", "first", "well")])
    done = collect_all(sampler)
    assert {key: one.status for key, one in done.items()} == {
        "tool": Status.TOOL_ERROR,
        "first": Status.ABORTED,
        "well": Status.COMPLETED,
    }
    assert "no backend" in done["tool"].provenance["error"]
    assert "reset" in caplog.text


def test_an_episode_that_cannot_even_be_built_is_aborted_alone(sampler_of, task_of, monkeypatch):
    from afm_core.rollout import local

    real = local.Episode

    def build(task, *arguments):
        if task.question == "bad":
            raise ValueError("this prompt holds a special token")
        return real(task, *arguments)

    monkeypatch.setattr(local, "Episode", build)
    sampler = sampler_of({"good": [FINISH]})
    sampler.start([EpisodeRequest("bad", task_of("bad")), EpisodeRequest("good", task_of("good"))])
    done = collect_all(sampler)
    assert (done["bad"].status, done["bad"].reward) == (Status.ABORTED, None)
    assert "special token" in done["bad"].provenance["error"]
    assert done["good"].status is Status.COMPLETED


def test_keys_are_unique_and_equal_attempts_are_not_run_twice_at_once(sampler_of, task_of):
    sampler = sampler_of({"q": [FINISH]})
    sampler.start([EpisodeRequest("a", task_of("q")), EpisodeRequest("b", task_of("q"))])
    with pytest.raises(ValueError, match="'a' is already"):
        sampler.start([EpisodeRequest("a", task_of("q"), sample=1)])
    done = collect_all(sampler)
    assert [done[key].status for key in "ab"] == [Status.COMPLETED, Status.ABORTED]
    assert "running as 'a'" in done["b"].provenance["error"]
    sampler.start([EpisodeRequest("a", task_of("q"), sample=1)])
    assert sampler.pending() == 1


def test_a_pending_sampler_does_not_rest_and_a_stalled_one_says_so(sampler_of, task_of):
    sampler = sampler_of({"q": [FINISH]}, stall_seconds=0.02)
    sampler.start([EpisodeRequest("q", task_of("q"))])
    with pytest.raises(ValueError, match="1 episodes are pending"):
        sampler.rest()
    sampler.engine.step = lambda: []
    with pytest.raises(RolloutStalled, match="generating"):
        collect_all(sampler)


def test_simulated_latency_is_added_to_every_call(sampler_of, task_of):
    sampler = sampler_of({f"q{n}": [SEARCH, FINISH] for n in range(4)}, simulated_tool_seconds=0.05)
    began = time.monotonic()
    sampler.start([EpisodeRequest(f"q{n}", task_of(f"q{n}")) for n in range(4)])
    done = collect_all(sampler)
    assert 0.05 <= time.monotonic() - began < 1.0  # the four calls wait side by side
    assert all(one.status is Status.COMPLETED for one in done.values())
    assert sampler.tool.calls == ["query"] * 4


class Echo:
    name = "echo"
    description = "echo"

    def call(self, argument):
        return ToolResult(ToolStatus.OK, f"about {argument}")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from tests_engines_model import make_model

    return [
        make_model(tmp_path_factory.mktemp(f"model{seed}"), seed=seed, max_position_embeddings=512) for seed in (3, 4)
    ]


def real_sampler(directory):
    config = EngineConfig(threads=1, slots=3, max_length=512)
    agent = AgentConfig(budget=Budget(turn_tokens=8, total_tokens=60, turns=3))
    return LocalSampler(open_engine(config, directory, "start", weights=False), {Tag.WEB_SEARCH: Echo()}, agent)


def batch(sampler, task_of, seed):
    sampler.start([EpisodeRequest(f"{n}", task_of(f"question {n}?"), n % 2, seed) for n in range(5)])
    return collect_all(sampler)


def test_a_fresh_process_goes_on_like_one_that_has_been_running(models, task_of):
    first, second = (TensorWeights(f"v{number}", directory) for number, directory in enumerate(models))
    running = real_sampler(models[0])
    running.load(first)
    once = batch(running, task_of, seed=1)
    running.rest()
    running.load(second)
    continued = [running.probe(range(20, 50), 4), batch(running, task_of, seed=2)]
    fresh = real_sampler(models[0])
    fresh.load(second)
    again = [fresh.probe(range(20, 50), 4), batch(fresh, task_of, seed=2)]
    assert [generation.logprobs for generation in again[0]] == [one.logprobs for one in continued[0]]
    assert again[1] == continued[1]
    fresh.load(first)
    assert batch(fresh, task_of, seed=1) == once != continued[1]


def test_a_probe_runs_beside_episodes_and_disturbs_none(models, task_of):
    sampler = real_sampler(models[0])
    sampler.load(TensorWeights("v", models[0]))
    (alone,) = sampler.probe(range(20, 50), 6)
    sampler.start([EpisodeRequest(f"{n}", task_of(f"question {n}?"), seed=n) for n in range(5)])
    sampler.collect(0.0)
    (beside,) = sampler.probe(range(20, 50), 6)
    assert beside.token_ids == alone.token_ids
    assert beside.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert len(collect_all(sampler)) == 5
