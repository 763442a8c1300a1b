"""Which rollout worker gets an episode. The workers are lists; nothing of Ray runs."""

from collections import deque
from types import SimpleNamespace

import pytest

from afm_core.config import AgentConfig, EngineConfig, RolloutConfig
from afm_core.rollout.ray_actors import WorkerPlan
from afm_core.rollout.ray_workers import RaySampler, _Worker
from afm_core.rollout.sampler import EpisodeRequest


@pytest.fixture
def sampler_of():
    """A sampler whose workers' actors keep the keys that they are given in `got`."""

    def make(workers, deterministic, slots=4):
        sampler = object.__new__(RaySampler)
        rollout = RolloutConfig(workers=workers, deterministic=deterministic)
        sampler._plan = WorkerPlan(None, None, AgentConfig(), EngineConfig(slots=slots), rollout)
        sampler._queue, sampler._keys, sampler._dealt = deque(), set(), 0
        sampler.got = [[] for _ in range(workers)]

        def actor(index):
            def remote(method, requests):
                assert method == "start"
                sampler.got[index] += [request.key for request in requests]

            return SimpleNamespace(call=SimpleNamespace(remote=remote))

        sampler._workers = [_Worker(index, actor(index)) for index in range(workers)]
        return sampler

    return make


def requests(task_of, *keys):
    return [EpisodeRequest(key, task_of("q")) for key in keys]


def test_deterministic_workers_take_turns_whatever_they_have(sampler_of, task_of):
    sampler = sampler_of(2, deterministic=True, slots=1)
    sampler.start(requests(task_of, *"abcde"))
    sampler._workers[0].episodes.clear()
    sampler.start(requests(task_of, *"fg"))
    assert sampler.got == [list("aceg"), list("bdf")]
    assert sampler.pending() == 7
    with pytest.raises(ValueError, match="'a' is already"):
        sampler.start(requests(task_of, "a"))


def test_else_the_least_busy_is_next_and_nobody_hoards(sampler_of, task_of):
    sampler = sampler_of(2, deterministic=False, slots=4)
    sampler.start(requests(task_of, *map(str, range(20))))
    assert [len(keys) for keys in sampler.got] == [6, 6]  # the slots, a quarter more, and one
    for key in sampler.got[1][:3]:
        del sampler._workers[1].episodes[key]
    sampler._deal()
    assert sampler.got[1][6:] == ["12", "13", "14"]
    assert len(sampler.got[0]) == 6
