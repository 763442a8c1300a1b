"""Every prompt exactly once: permutations of epochs, and a cursor that no kill makes skip or repeat."""

import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import ConfigError
from afm_core.data import AgentTask, Difficulty
from afm_core.training.rl.cursor import Cursor, PromptOrder, PromptOutcome

TASKS = [f"task-{n}" for n in range(7)]


def epoch(order, number):
    return [order[position] for position in range(number * len(order), (number + 1) * len(order))]


# --- order


@given(count=st.integers(1, 20), seed=st.integers(0, 99), number=st.integers(0, 5))
def test_every_epoch_is_a_permutation_that_ignores_the_order_of_the_tasks(count, seed, number):
    ids = [f"task-{n}" for n in range(count)]
    order = PromptOrder(ids, seed)
    assert sorted(epoch(order, number)) == sorted(ids)
    assert epoch(PromptOrder(ids[::-1], seed), number) == epoch(order, number)


def test_epochs_and_seeds_differ():
    order = PromptOrder(TASKS, 0)
    assert epoch(order, 0) != epoch(order, 1)
    assert epoch(order, 0) != epoch(PromptOrder(TASKS, 1), 0)


def test_a_curriculum_runs_from_easy_to_hard_with_seeded_ties():
    rates = dict(zip(TASKS, [0.5, 0.25, 0.5, 0.75, 0.5, 0.0, 0.5], strict=True))
    orders = [PromptOrder(TASKS, seed, rates) for seed in range(8)]
    for order in orders:
        for number in range(2):
            found = [rates[one] for one in epoch(order, number)]
            assert found == sorted(found, reverse=True)
    assert len({tuple(epoch(order, 0)) for order in orders}) > 1


def test_an_order_of_tasks_takes_their_solve_rates():
    tasks = [
        AgentTask.create(f"question {n}?", ("x",), difficulty=Difficulty(hops=1, solve_rate=n / 4)) for n in range(4)
    ]
    assert epoch(PromptOrder.of(tasks, 0, curriculum=True), 0) == [task.id for task in reversed(tasks)]
    assert sorted(epoch(PromptOrder.of(tasks, 0, curriculum=False), 0)) == sorted(task.id for task in tasks)


def test_a_curriculum_without_measured_rates_is_refused():
    tasks = [AgentTask.create("question?", ("x",))]
    with pytest.raises(ConfigError, match=r"selection\.samples"):
        PromptOrder.of(tasks, 0, curriculum=True)


@pytest.mark.parametrize("ids", [[], ["a", "b", "a"]])
def test_no_tasks_or_one_twice_is_refused(ids):
    with pytest.raises(ValueError, match="each once"):
        PromptOrder(ids, 0)


def test_a_negative_position_is_refused():
    with pytest.raises(IndexError):
        PromptOrder(TASKS, 0)[-1]


# --- cursor


def test_positions_are_handed_out_once():
    cursor = Cursor()
    assert cursor.take(3) == [0, 1, 2]
    assert cursor.take(2) == [3, 4]
    cursor.consume(1, PromptOutcome.TRAINED)
    assert cursor.outstanding == (0, 2, 3, 4)
    assert cursor.take(1) == [5]


def test_a_resumed_cursor_hands_out_what_was_in_flight_first():
    cursor = Cursor()
    for position in cursor.take(4)[1:3]:
        cursor.consume(position, PromptOutcome.NO_SIGNAL)
    resumed = Cursor.from_json(json.loads(json.dumps(cursor.to_json())))
    assert resumed.take(3) == [0, 3, 4]
    assert resumed.outcomes == {"no_signal": 2}
    assert resumed.next_position == 5


def test_a_position_that_was_put_back_comes_again_and_stays_outstanding():
    cursor = Cursor()
    cursor.take(2)
    cursor.put_back([0])
    assert cursor.outstanding == (0, 1)
    with pytest.raises(ValueError, match="position 0 is not in flight"):
        cursor.consume(0, PromptOutcome.TRAINED)
    assert cursor.take(2) == [0, 2]
    cursor.consume(0, PromptOutcome.TRAINED)


@pytest.mark.parametrize("action", [lambda c: c.consume(5, PromptOutcome.TRAINED), lambda c: c.put_back([5])])
def test_what_was_never_handed_out_cannot_be_consumed(action):
    cursor = Cursor()
    cursor.take(2)
    with pytest.raises(ValueError, match="position 5 is not in flight"):
        action(cursor)


def test_nothing_is_consumed_twice():
    cursor = Cursor()
    cursor.take(1)
    cursor.consume(0, PromptOutcome.TRAINED)
    with pytest.raises(ValueError, match="position 0"):
        cursor.consume(0, PromptOutcome.TRAINED)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"next": 3, "outstanding": [1], "outcomes": {}},
        {"next": 1, "outstanding": [4], "outcomes": {}},
        {"next": 1, "outstanding": [], "outcomes": {"lost": 1}},
        {"next": 1, "outstanding": [0], "outcomes": []},
    ],
)
def test_a_state_that_lost_count_is_refused(state):
    with pytest.raises(ValueError):
        Cursor.from_json(state)


class Run:
    """A training run over a cursor: hands out, finishes episodes, trains, saves its state after every step.

    `ahead` 0 is synchronous: a step waits for its own prompts. Else so many more are in flight, and the first that
    finish are trained: which these are is drawn anew after every start, as on a real machine.
    """

    def __init__(self, steps, prompts, ahead, saved=None, randomness=None):
        self.steps, self.prompts, self.ahead = steps, prompts, ahead
        self.saved = saved or {"cursor": Cursor().to_json(), "trained": []}
        self.randomness = randomness or random.Random(0)

    def go(self, kill_at=None):
        """Run to the end, or to a kill after `kill_at` events; returns what a checkpoint holds."""
        cursor, trained = Cursor.from_json(self.saved["cursor"]), [list(step) for step in self.saved["trained"]]
        flying, events = [], 0
        while len(trained) < self.steps:
            step = []
            while len(step) < self.prompts:
                flying += cursor.take(self.prompts + self.ahead - len(flying) - len(step))
                finished = flying.pop(self.randomness.randrange(len(flying)) if self.ahead else 0)
                cursor.consume(finished, PromptOutcome.TRAINED)
                step.append(finished)
                events += 1
                if events == kill_at:
                    return self.saved
            trained.append(step)
            self.saved = {"cursor": json.loads(json.dumps(cursor.to_json())), "trained": trained.copy()}
        return self.saved


@given(kills=st.lists(st.integers(1, 12), max_size=5), prompts=st.integers(1, 4), steps=st.integers(1, 6))
def test_nemo_rl_3599_a_killed_synchronous_run_trains_the_same_prompts(kills, prompts, steps):
    """NeMo-RL#3599: a resumed run skipped the prompts that were in flight."""
    whole = Run(steps, prompts, ahead=0).go()
    saved = None
    for kill in kills:
        saved = Run(steps, prompts, 0, saved).go(kill_at=kill)
    assert Run(steps, prompts, 0, saved).go()["trained"] == whole["trained"]


@given(
    kills=st.lists(st.integers(1, 12), max_size=5),
    prompts=st.integers(1, 4),
    ahead=st.integers(1, 8),
    steps=st.integers(1, 6),
    seed=st.integers(0, 999),
)
def test_nemo_rl_3599_a_killed_asynchronous_run_skips_and_repeats_nothing(kills, prompts, ahead, steps, seed):
    """Whatever was killed: trained and outstanding prompts are together every prompt that was reached, each once."""
    randomness = random.Random(seed)
    saved = None
    for kill in kills:
        saved = Run(steps, prompts, ahead, saved, randomness).go(kill_at=kill)
    saved = Run(steps, prompts, ahead, saved, randomness).go()
    trained = [position for step in saved["trained"] for position in step]
    reached = Counter(trained) + Counter(saved["cursor"]["outstanding"])
    assert reached == Counter(range(saved["cursor"]["next"]))
    assert saved["cursor"]["outcomes"] == {"trained": steps * prompts}
    drained = Cursor.from_json(saved["cursor"])
    rest = drained.take(len(drained.outstanding))
    assert sorted(trained + rest) == list(range(saved["cursor"]["next"]))
