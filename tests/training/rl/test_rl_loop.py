"""The loop with fakes: what is sampled, trained, evaluated, kept, and how it ends."""

from collections.abc import Callable
from pathlib import Path

import pytest
from rl_samples import FakeSampler, episode, task

from afm_core.config import AgentConfig, RlConfig
from afm_core.data import Split, Status, Trajectory, trajectories_from_table
from afm_core.rollout.sampler import EpisodeRequest
from afm_core.store import read_table
from afm_core.training.errors import TrainingFailed, TrainingStopped
from afm_core.training.rl.cursor import Cursor, PromptOrder
from afm_core.training.rl.experience import read_experience
from afm_core.training.rl.gather import Rollouts
from afm_core.training.rl.loop import Hooks, reinforce
from afm_core.training.rl.records import End, RlState
from afm_core.training.rl.sync import SyncReport
from afm_core.training.rl.update import UpdateRecord

TASKS = [task(number) for number in range(8)]
DEV = [task(100 + number, Split.DEV) for number in range(4)]
SMALL = {"steps": 3, "prompts": 2, "group_size": 2, "max_tokens": 64, "micro_batch_tokens": 64}


class Run:
    """One run of the loop over fakes, with everything that it did."""

    def __init__(
        self,
        directory: Path,
        outcome: Callable[[EpisodeRequest], Trajectory],
        config: RlConfig,
        state: RlState | None = None,
        dev: bool = True,
    ) -> None:
        self.directory, self.config = directory, config
        self.sampler = FakeSampler(outcome)
        self.state = state or RlState()
        self.updates: list[Path] = []
        self.best: list[int] = []
        self.checkpoints: list[dict] = []
        self.stop_after: int | None = None
        self.dev = DEV if dev else []
        cursor = Cursor.from_json(self.state.cursor) if self.state.cursor else Cursor()
        order = PromptOrder([one.id for one in TASKS], config.seed)
        by_id = {one.id: one for one in TASKS}
        self.rollouts = Rollouts(self.sampler, order, cursor, by_id, config, AgentConfig())

    def update(self, directory: Path, step: int) -> UpdateRecord:
        self.updates.append(directory)
        return UpdateRecord(step, entropy=1.0, model_tokens=3)

    def synchronise(self, previous: str) -> SyncReport:
        self.sampler.version = f"v{self.state.step}"
        return SyncReport(version=self.sampler.version, probe_difference=0.0, seconds=0.0)

    def __call__(self) -> RlState:
        hooks = Hooks(
            synchronise=self.synchronise,
            keep_best=self.best.append,
            checkpoint=lambda state: self.checkpoints.append(state.to_json()),
            should_stop=lambda: self.stop_after is not None and len(self.updates) >= self.stop_after,
        )
        return reinforce(self, self.rollouts, self.dev, self.directory, self.config, self.state, hooks)


def mixed(run_version: Callable[[], str] = lambda: "v0") -> Callable[[EpisodeRequest], Trajectory]:
    """Every other member of a group succeeds; dev tasks fail."""
    return lambda request: episode(request, float(request.sample % 2 and request.temperature > 0), run_version())


def make(directory: Path, **values) -> Run:
    state = values.pop("state", None)
    dev = values.pop("dev", True)
    run = Run(directory, lambda request: episode(request, 0.0), RlConfig(**{**SMALL, **values}), state, dev)
    run.sampler.outcome = mixed(lambda: run.sampler.version)
    return run


def test_a_step_trains_exactly_what_was_sampled_and_keeps_it(tmp_path) -> None:
    run = make(tmp_path)
    state = run()
    assert (state.end, state.step) == (End.COMPLETED, 3)
    assert [path.name for path in run.updates] == ["step-000001", "step-000002", "step-000003"]
    rows = read_experience(run.updates[0])
    saved = {one.id: one for one in trajectories_from_table(read_table(run.updates[0] / "trajectories.parquet"))}
    assert len(rows) == 4
    assert {row.id for row in rows} == set(saved)
    for row in rows:
        assert row.ids == (1, 2, 3, 4, 5)
        assert row.mask == (0, 0, 1, 1, 1)
        assert row.logprobs == (0.0, 0.0, -0.5, -0.25, -0.125)
        assert (row.advantages[-1] > 0) == (saved[row.id].reward == 1.0)


def test_each_prompt_is_sampled_once_an_epoch_and_a_step_takes_the_next_ones(tmp_path) -> None:
    run = make(tmp_path, steps=4)
    run()
    sampled = [request.task.id for request in run.sampler.started if request.temperature > 0 and request.sample == 0]
    assert sorted(sampled) == sorted(one.id for one in TASKS)
    assert run.rollouts.cursor.outcomes == {"trained": 8}


def test_dead_groups_are_replaced_until_there_is_signal(tmp_path) -> None:
    run = make(tmp_path, steps=1, dev=False)
    dead = {run.rollouts.order[0], run.rollouts.order[1]}
    alive = run.sampler.outcome
    run.sampler.outcome = lambda request: episode(request, 1.0) if request.task.id in dead else alive(request)
    record = run().steps[0]
    assert (record["groups"], record["live_groups"], record["sampling_rounds"]) == (4, 2, 2)
    assert record["masked"] == {"no_signal": 4}
    assert len(read_experience(run.updates[0])) == 4


def test_a_small_round_is_a_round(tmp_path) -> None:
    run = make(tmp_path, steps=1, dev=False, sampling_rounds=2)
    dead = {run.rollouts.order[position] for position in (1, 2)}
    alive = run.sampler.outcome
    run.sampler.outcome = lambda request: episode(request, 1.0) if request.task.id in dead else alive(request)
    record = run().steps[0]
    assert (record["groups"], record["live_groups"], record["sampling_rounds"]) == (3, 1, 2)


def test_verl_953_no_signal_is_a_named_end_and_no_crash(tmp_path) -> None:
    run = make(tmp_path)
    run.sampler.outcome = lambda request: episode(request, 0.0)
    state = run()
    assert (state.end, state.step, run.updates) == (End.NO_SIGNAL, 0, [])
    assert len([request for request in run.sampler.started if request.temperature > 0]) == 2 * 2 * 3
    assert state.evaluated(0)


def test_an_outage_is_an_error_and_not_a_lack_of_signal(tmp_path) -> None:
    run = make(tmp_path, dev=False)
    run.sampler.outcome = lambda request: episode(request, None, status=Status.TOOL_ERROR, error="no route to host")
    with pytest.raises(TrainingFailed, match="no route to host"):
        run()


def test_unscored_members_are_masked_and_counted(tmp_path) -> None:
    run = make(tmp_path, steps=1, group_size=3, dev=False)
    alive = run.sampler.outcome
    run.sampler.outcome = lambda request: (
        episode(request, None, status=Status.GRADER_ERROR) if request.sample == 2 else alive(request)
    )
    record = run().steps[0]
    assert (record["masked"], record["trajectories"]) == ({"grader_error": 2}, 4)
    assert record["status"] == {"completed": 4, "grader_error": 2}


def accuracy_by_step(run: Run, *accuracies: float) -> None:
    alive = run.sampler.outcome

    def outcome(request: EpisodeRequest) -> Trajectory:
        if request.temperature > 0:
            return alive(request)
        number = int(request.key.removeprefix("dev/"))
        return episode(request, float(number < accuracies[run.state.step] * len(DEV)))

    run.sampler.outcome = outcome


def test_the_best_model_on_dev_is_kept_and_of_equals_the_latest(tmp_path) -> None:
    run = make(tmp_path, steps=4, evaluate_every=1)
    accuracy_by_step(run, 0.25, 0.75, 0.5, 0.75, 0.25)
    state = run()
    assert run.best == [1, 3]
    assert state.best == 3
    assert [one.accuracy for one in state.evaluations] == [0.25, 0.75, 0.5, 0.75, 0.25]


def test_a_model_that_never_gets_better_than_the_policy_registers_step_0(tmp_path) -> None:
    run = make(tmp_path, evaluate_every=1)
    accuracy_by_step(run, 0.75, 0.5, 0.5, 0.25)
    assert (run().best, run.best) == (0, [])


def test_patience_stops_early(tmp_path) -> None:
    run = make(tmp_path, steps=4, evaluate_every=1, patience=2)
    accuracy_by_step(run, 0.25, 0.5, 0.25, 0.25, 1.0)
    state = run()
    assert (state.end, state.step, state.best) == (End.EARLY_STOP, 3, 1)


def test_without_dev_tasks_the_last_model_is_kept(tmp_path) -> None:
    run = make(tmp_path, dev=False)
    assert run().best == 3
    assert run.best == [3]


def test_nemo_rl_3599_a_run_stopped_after_a_step_goes_on_with_the_same_prompts(tmp_path) -> None:
    whole = make(tmp_path / "whole", dev=False)
    whole()
    first = make(tmp_path / "first", dev=False)
    first.stop_after = 1
    with pytest.raises(TrainingStopped):
        first()
    second = make(tmp_path / "second", dev=False, state=RlState.from_json(first.checkpoints[-1]))
    second()
    asked = [(request.task.id, request.sample, request.seed) for request in first.sampler.started]
    asked += [(request.task.id, request.sample, request.seed) for request in second.sampler.started]
    assert asked == [(request.task.id, request.sample, request.seed) for request in whole.sampler.started]
    assert second.state.to_json() == whole.state.to_json()


def test_collapse_is_warned_of(tmp_path) -> None:
    run = make(tmp_path, dev=False)
    entropies = iter([1.0, 0.9, 0.01])
    run.update = lambda directory, step: UpdateRecord(step, entropy=next(entropies))
    assert run().warnings == ["step 3: entropy 0.0100 nats, 1.0000 at first"]


def asynchronous(directory: Path, **values) -> Run:
    return make(directory, maximum_staleness=1, dev=False, **values)


def test_asynchronous_episodes_of_the_next_step_are_in_flight_while_a_step_trains(tmp_path) -> None:
    run = asynchronous(tmp_path, steps=2)
    in_flight: list[int] = []
    run.update = lambda directory, step: in_flight.append(run.sampler.pending()) or UpdateRecord(step, entropy=1.0)
    run()
    assert all(count >= 2 * 2 for count in in_flight)


def test_asynchronous_slow_episodes_do_not_hold_a_step(tmp_path) -> None:
    run = asynchronous(tmp_path, steps=1)
    slow = run.rollouts.order[0]
    run.sampler.held = lambda request: request.task.id == slow
    state = run()
    assert state.step == 1
    assert 0 in run.rollouts.cursor.outstanding


def test_asynchronous_a_group_that_is_too_old_is_sampled_again(tmp_path) -> None:
    run = asynchronous(tmp_path, steps=6)
    slow = run.rollouts.order[0]
    run.sampler.held = lambda request: request.task.id == slow and run.state.step < 3
    alive = run.sampler.outcome

    def old_at_first(request: EpisodeRequest) -> Trajectory:
        again = sum(one.key == request.key for one in run.sampler.started) > 1
        return (
            episode(request, float(request.sample % 2), "v0")
            if request.task.id == slow and not again
            else alive(request)
        )

    run.sampler.outcome = old_at_first
    state = run()
    assert sum(record["stale_groups"] for record in state.steps) >= 1
    assert [request.key for request in run.sampler.started].count("0/0") == 2
    assert 0 not in run.rollouts.cursor.outstanding
    assert max(record["staleness"] for record in state.steps) <= 1
