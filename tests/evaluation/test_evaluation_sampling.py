"""Which tasks are evaluated: in proportion, nested, and the same for every model."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import EvaluationConfig
from afm_core.data import AgentTask, Difficulty, Split
from afm_core.evaluation.protocols import Variant, trials_of
from afm_core.evaluation.sampling import stratified_sample, task_set_digest


def tasks_of(counts):
    return [
        AgentTask.create(f"question {hops} {number}", ("yes",), difficulty=Difficulty(hops=hops))
        for hops, count in counts.items()
        for number in range(count)
    ]


counts = st.dictionaries(st.integers(1, 4), st.integers(1, 25), min_size=1)


@given(counts, st.integers(1, 60), st.integers(1, 60), st.integers(0, 3))
def test_a_smaller_sample_is_part_of_a_larger_one(counts, first, second, seed):
    tasks = tasks_of(counts)
    small, large = ({task.id for task in stratified_sample(tasks, size, seed)} for size in sorted((first, second)))
    assert small <= large


@given(counts, st.integers(1, 60))
def test_hops_keep_their_share(counts, limit):
    tasks = tasks_of(counts)
    sample = stratified_sample(tasks, limit, seed=0)
    assert len(sample) == min(limit, len(tasks))
    seen = Counter(task.difficulty.hops for task in sample)
    for hops, count in counts.items():
        # Webster's rule keeps every quota within one of its share for up to four strata of such sizes, ties
        # aside.
        assert abs(seen[hops] - count * len(sample) / len(tasks)) < 2


@given(counts, st.integers(1, 60), st.randoms())
def test_order_of_tasks_does_not_matter(counts, limit, random):
    tasks = tasks_of(counts)
    shuffled = list(tasks)
    random.shuffle(shuffled)
    assert stratified_sample(tasks, limit, 1) == stratified_sample(shuffled, limit, 1)


def test_no_limit_takes_all_and_the_seed_matters():
    tasks = tasks_of({1: 20, 2: 20})
    assert len(stratified_sample(tasks, None, 0)) == 40
    assert stratified_sample(tasks, 10, 0) != stratified_sample(tasks, 10, 1)


def test_task_set_digest_knows_no_order():
    assert task_set_digest(["a", "b"]) == task_set_digest(["b", "a"])
    assert task_set_digest(["a", "b"]) != task_set_digest(["a", "c"])


def test_the_champion_defends_itself_on_the_gate_alone() -> None:
    trials = trials_of(Variant.CHAMPION, EvaluationConfig(gate_limit=7), {})
    policy = trials_of(Variant.POLICY, EvaluationConfig(gate_limit=7), {})
    assert [trial.split for trial in trials] == [Split.GATE]
    assert trials[0] in policy
