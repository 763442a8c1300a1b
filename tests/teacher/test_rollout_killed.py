"""A real server that fails in every way, and real kills: every task ends with a status, nothing twice, nothing lost."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from rollout_process import KEY
from test_rollout_stage import spec_of

from afm_core.data import AgentTask, Status, trajectories_from_table
from afm_core.store import open_store, read_table
from afm_core.teacher.team.tables import read_recordings

pytestmark = pytest.mark.integration
HERE = Path(__file__).parent
ROLLOUTS = 2
REPLY_FAULTS = {"garbage": 0.05, "cut": 0.05}
FAULTS = {
    **REPLY_FAULTS,
    "rate_limited": 0.06,
    "error": 0.06,
    "slow": 0.05,
    "broken": 0.04,
    "malformed": 0.04,
    "retry_after": 0.05,
}


@contextmanager
def process(script, *arguments):
    """A process of its own group, killed at the end."""
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    started = subprocess.Popen(
        [sys.executable, str(HERE / script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
        started.communicate()


@contextmanager
def server(**options):
    with process("scripted_server.py", json.dumps(options)) as running:
        yield int(running.stdout.readline())


def stats(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=10) as reply:
        return json.load(reply)


@pytest.fixture(scope="module")
def tasks():
    named = ("Mombasa", "Nairobi", "Kenya", "Eldoret", "Nakuru", "Thika")
    made = [AgentTask.create(f"What is the capital of the country of {name}?", ("Nairobi",)) for name in named]
    return sorted(made, key=lambda one: one.id)


@pytest.fixture(scope="module")
def spec_at(tmp_path_factory, documents, tasks):
    """The spec of the stage on a server, in a store of its own: (the store, the arguments of its process)."""

    def make(port):
        directory = tmp_path_factory.mktemp("rollout")
        store = open_store(str(directory / "store"), directory / "cache")
        endpoint = {"name": "one", "base_url": f"http://127.0.0.1:{port}/v1", "model": "m", "concurrency": 4}
        endpoint["timeout_seconds"] = 20
        fields = {"endpoints": [endpoint], "rollouts": ROLLOUTS, "shard_tasks": 2, "concurrency": 4}
        path = directory / "spec.json"
        path.write_text(spec_of(store, documents, tasks, **fields).model_dump_json())
        return store, (str(path), str(directory / "scratch"))

    return make


def finish(arguments):
    """Run the stage to its end; the digest of what it committed."""
    with process("rollout_process.py", *arguments) as stage:
        output, errors = stage.communicate(timeout=120)
    assert stage.returncode == 0, errors
    return output


@pytest.fixture(scope="module")
def calm(spec_at):
    """A run that nothing disturbs: (its digest, its store, what its server saw)."""
    with server(**REPLY_FAULTS) as port:
        store, arguments = spec_at(port)
        return finish(arguments), store, stats(port)


def whole(store):
    """The committed artifact's directory."""
    return store.open(store.ref(store.lookup(KEY))).path


def check_whole(directory, tasks):
    """Every task is there once, every rollout has a status, and the figures of the files agree."""
    recordings = list(read_recordings(directory))
    expected = sorted(f"{task.id}-r{number}" for task in tasks for number in range(ROLLOUTS))
    assert sorted(one.id for one in recordings) == expected
    assert all(isinstance(one.status, Status) for one in recordings)
    choices = read_table(directory / "choices.parquet").to_pylist()
    assert [one["task_id"] for one in choices] == [task.id for task in tasks]
    kept = trajectories_from_table(read_table(directory / "trajectories.parquet"))
    assert len({one.task_id for one in kept}) == len(kept)
    events = [event.id for one in recordings for event in one.events]
    assert len(set(events)) == len(events)
    return recordings


def total_of(metrics, prefix):
    return sum(count for name, count in metrics.items() if name.startswith(prefix))


def test_faults_of_every_kind_cost_nothing_but_attempts(calm, spec_at, tasks):
    """The same demonstrations as from a server without faults of the transport; each attempt is accounted for."""
    with server(**FAULTS) as port:
        store, arguments = spec_at(port)
        digest, seen = finish(arguments), stats(port)
    for one, requests in ((calm[1], calm[2]["requests"]), (store, seen["requests"])):
        recordings = check_whole(whole(one), tasks)
        metrics = one.lookup(KEY).metrics
        assert total_of(metrics, "attempts/") == requests
        assert total_of(metrics, "status/") == len(recordings) == metrics["rollouts"]
    assert set(seen["faults"]) == {"rate_limited", "error", "slow", "broken", "malformed", "garbage", "cut"}
    assert seen["requests"] > calm[2]["requests"]
    assert digest == calm[0]
    assert all(count == 1 for count in Counter(seen["answered"]).values())


def test_kill_9_again_and_again_repeats_no_finished_rollout_and_loses_none(calm, spec_at, tasks):
    with server(seconds=0.03, **REPLY_FAULTS) as port:
        store, arguments = spec_at(port)
        finished, boundaries = [], []
        for share in (0.5, 0.8):  # the first shard is over by then
            with process("rollout_process.py", *arguments) as stage:
                while stats(port)["requests"] < share * calm[2]["requests"] and stage.poll() is None:
                    time.sleep(0.02)
                assert stage.poll() is None, stage.stderr.read()
                os.killpg(stage.pid, signal.SIGKILL)
                stage.wait()
            finished.append(sealed(store))
            boundaries.append(len(stats(port)["answered"]))
        resumed = finish(arguments)
        answered = stats(port)["answered"]
    assert resumed == calm[0]
    recordings = check_whole(whole(store), tasks)
    seeds = {
        one.id: {event.exchange.request.sampling.seed for event in one.events if event.exchange} for one in recordings
    }
    assert finished[0], "the first kill came before anything was finished"
    for before, boundary in zip(finished, boundaries, strict=True):
        asked_after = set(answered[boundary:])
        assert not [name for name in before if seeds[name] & asked_after]


def sealed(store):
    """The rollouts that the store holds as finished, alone or within a shard."""
    root = Path(store.uri.removeprefix("file://"))
    names = set()
    for record in root.glob(f"work/{KEY}/*/seals/*.json"):
        name, document = unquote(record.stem), json.loads(record.read_text())
        if name.startswith("rollouts/") and document["directory"]:
            names.add(name.rpartition("/")[2])
        if name.startswith("shards/"):
            lines = (root / document["directory"] / "outcomes.jsonl").read_text().splitlines()
            names |= {f"{json.loads(line)['task_id']}-r{number}" for line in lines for number in range(ROLLOUTS)}
    return names
