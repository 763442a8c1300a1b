"""Rollout workers as Ray actors: what they sample, how they die, and that nothing of them is left."""

import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from afm_core.config import ConfigError
from afm_core.engines.weights import directory_digest
from afm_core.execution.worker import classify
from afm_core.rollout.local import LocalSampler
from afm_core.rollout.ray_actors import RolloutWorkerDied
from afm_core.rollout.sampler import EpisodeRequest

sys.path.append(str(Path(__file__).parents[1] / "engines"))

pytestmark = pytest.mark.integration


@dataclass(frozen=True)
class Weights:
    source: Path

    @property
    def version(self):
        return directory_digest(self.source)

    def state(self):
        raise AssertionError("tensors do not reach another process")

    def directory(self):
        return self.source


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    from tests_engines_model import make_model

    return [
        Weights(make_model(tmp_path_factory.mktemp(f"model{seed}"), seed=seed, max_position_embeddings=512))
        for seed in (3, 4)
    ]


@pytest.fixture(scope="module")
def cluster():
    import ray
    import ray_samples
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(ray_samples)  # the workers do not have the tests on their path
    ray.init(
        address="local",
        num_cpus=3,
        include_dashboard=False,
        object_store_memory=100_000_000,
        logging_level=logging.WARNING,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


def requests(task_of, seed, count=6):
    return [EpisodeRequest(f"{n}", task_of(f"question {n}?"), n % 2, seed) for n in range(count)]


def collect_all(sampler):
    done = {}
    while sampler.pending():
        done.update(sampler.collect(5.0))
    return done


def gone(pids, seconds=30):
    until = time.monotonic() + seconds
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.1)
    return not any(psutil.pid_exists(pid) for pid in pids)


def test_workers_sample_are_killed_and_replaced_and_end(cluster, models, task_of, caplog):
    """nemo_rl_3488: a dead worker is noticed, its episodes run again, and past the limit the run fails at once."""
    from ray_samples import AGENT, make_tools, sampler_of, slow_engine

    sampler = sampler_of(models[0].source, seconds=0.03, maximum_restarts=1)
    processes = sampler.processes
    assert sampler.load(models[0]) == models[0].version
    first, second = sampler.probe(range(20, 60), 6)
    assert (first.token_ids, first.logprobs) == (second.token_ids, second.logprobs)
    sampler.start(requests(task_of, seed=1))
    done = collect_all(sampler)
    alone = LocalSampler(slow_engine(models[0].source, 0.0), make_tools(), AGENT)
    alone.load_directory(models[0].source, models[0].version)
    alone.probe(range(20, 60), 6)
    alone.start(requests(task_of, seed=1)[1::2])
    assert {key: done[key] for key in "135"} == collect_all(alone)

    sampler.load(models[1])
    sampler.probe(range(20, 60), 6)
    sampler.start(requests(task_of, seed=2))
    expected = collect_all(sampler)
    sampler.load(models[1])
    with caplog.at_level(logging.WARNING):
        sampler.start(requests(task_of, seed=2))
        sampler.collect(0.2)
        os.kill(processes[1], signal.SIGKILL)
        repeated = collect_all(sampler)
    assert "rollout worker 1 died" in caplog.text
    assert set(repeated) <= set(expected)
    for key, trajectory in repeated.items():
        assert trajectory.source == models[1].version
        assert trajectory.segments[1].token_ids == expected[key].segments[1].token_ids
    replaced = sampler.processes
    assert replaced[0] == processes[0]
    assert gone([processes[1]])

    sampler.start(requests(task_of, seed=3))
    began = time.monotonic()
    os.kill(processes[0], signal.SIGKILL)
    with pytest.raises(RolloutWorkerDied, match=r"worker 0 died: .*GiB in use.*maximum_restarts: 1") as death:
        collect_all(sampler)
    assert time.monotonic() - began < 30
    assert classify(death.value) == "infrastructure"
    sampler.close()
    assert gone(replaced)


def test_a_worker_that_cannot_start_fails_the_run_with_its_own_error(cluster, models):
    from ray_samples import AGENT, ENGINE, broken_engine, make_tools, sampler_of

    from afm_core.config import RolloutConfig
    from afm_core.rollout.ray_workers import RaySampler

    began = time.monotonic()
    with pytest.raises(RuntimeError, match="rollout worker 0: OSError: no such device"):
        RaySampler(broken_engine, make_tools, AGENT, ENGINE, RolloutConfig(workers=1))
    assert time.monotonic() - began < 60
    with pytest.raises(ConfigError, match="9 workers x 1 CPU"):
        sampler_of(models[0].source, workers=9)


def test_workers_end_with_the_process_that_made_them(cluster, models):
    """The owner sits in a placement group that captures what it starts, as a Ray Train worker does."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
    from ray_samples import sampler_of

    class Owner:
        def begin(self, directory):
            self.sampler = sampler_of(directory, workers=1)
            return os.getpid(), self.sampler.processes

    group = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    owner = cluster.remote(Owner).options(num_cpus=1, scheduling_strategy=strategy).remote()
    process, workers = cluster.get(owner.begin.remote(models[0].source), timeout=120)
    os.kill(process, signal.SIGKILL)
    assert gone(workers)
