"""The global steps: every row is counted once, whatever the order, and shares are kept."""

import random

import pytest
from curation_samples import reflecting, task_of, trajectory_of
from hypothesis import given
from hypothesis import strategies as st

from afm_core.config import CurationConfig
from afm_core.curation import RejectReason, RowFacts, curate_rows, decide
from afm_core.curation.mixing import draw

FACTS = st.builds(
    RowFacts,
    id=st.sampled_from([f"row{number}" for number in range(12)]),
    digest=st.uuids().map(str),
    reason=st.none() | st.sampled_from(RejectReason),
    text_key=st.sampled_from([f"text{number}" for number in range(20)]),
    reflects=st.booleans(),
    corrected=st.booleans(),
    guessable=st.booleans(),
)
CONFIGS = st.builds(
    CurationConfig,
    without_reflection_share=st.floats(0, 1),
    correction_copies=st.integers(1, 4),
    guessable_share=st.floats(0, 1),
    maximum=st.none() | st.integers(1, 12),
    seed=st.integers(0, 5),
)


@given(st.lists(FACTS, max_size=60), CONFIGS, st.randoms())
def test_in_is_kept_plus_rejected_and_order_does_not_matter(rows, config, shuffler):
    decision = decide(rows, config)
    counts = decision.counts()
    assert counts["in"] == len(rows) == counts["kept"] + sum(counts["rejected"].values())
    assert counts["written"] == counts["kept"] + counts["copies"]
    shuffled = list(rows)
    shuffler.shuffle(shuffled)
    assert decide(shuffled, config) == decision


@given(st.lists(FACTS, max_size=60), CONFIGS)
def test_what_is_kept_is_unique_and_within_the_guessable_share(rows, config):
    kept = decide(rows, config).kept
    assert len({row.text_key for row in kept}) == len(kept)
    assert config.maximum is None or len(kept) <= config.maximum
    assert sum(row.guessable for row in kept) <= config.guessable_share * len(kept) + 1e-6


@given(st.lists(FACTS, max_size=40), CONFIGS)
def test_a_rejected_row_keeps_its_first_reason(rows, config):
    decision = decide(rows, config)
    judged = sorted(row.reason for row in rows if row.reason is not None)
    late = {
        RejectReason.DUPLICATE,
        RejectReason.WITHOUT_REFLECTION,
        RejectReason.SURPLUS,
        RejectReason.GUESSABLE_SURPLUS,
    }
    found = sorted(one.reason for one in decision.rejected)
    for reason in set(RejectReason) - late:
        assert found.count(reason) == judged.count(reason)


def facts(count, **fields):
    return [RowFacts(f"row{n:04d}", f"digest{n}", text_key=f"text{n}", **fields) for n in range(count)]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_down_sampling_keeps_about_its_share(share):
    kept = decide(facts(2000), CurationConfig(without_reflection_share=share)).kept
    assert abs(len(kept) / 2000 - share) < 0.04


def test_the_size_of_the_mix_is_bounded_and_the_rest_is_counted():
    decision = decide(facts(50), CurationConfig(maximum=20))
    assert len(decision.kept) == 20
    assert [one.reason for one in decision.rejected] == [RejectReason.SURPLUS] * 30


@pytest.mark.parametrize(
    ("share", "new", "replayed"),
    [(0.0, 10, 0), (0.5, 10, 10), (0.75, 10, 30), (1.0, 10, 40), (0.9, 10, 40), (0.5, 0, 0)],
)
def test_old_rows_are_at_most_their_share_of_the_mix_and_new_ones_all_stay(share, new, replayed):
    rows = facts(40 + new)
    old = {row.digest for row in rows[:40]}
    decision = decide(rows, CurationConfig(replay_share=share), old)
    kept = {row.digest for row in decision.kept}
    assert (len(kept & old), len(kept - old)) == (replayed, new)
    assert [one.reason for one in decision.rejected] == [RejectReason.NOT_REPLAYED] * (40 - replayed)
    assert decide(reversed(rows), CurationConfig(replay_share=share), old) == decision


def test_another_seed_draws_other_rows():
    first, second = (decide(facts(200), CurationConfig(without_reflection_share=0.5, seed=seed)) for seed in (0, 1))
    assert {row.id for row in first.kept} != {row.id for row in second.kept}
    assert 0 <= draw(0, "x") < 1


def test_duplicates_keep_the_first_id_case_and_spaces_aside():
    task = task_of("Mombasa", "Kenya")
    one = trajectory_of(task, id="b")
    spaced = tuple(
        segment.model_copy(update={"text": segment.text.replace(" ", "  ").replace("belongs", "BELONGS")})
        for segment in one.segments
    )
    other = one.model_copy(update={"id": "a", "segments": spaced})
    kept, decision = curate_rows([one, other], [task], CurationConfig())
    assert [row.id for row in kept] == ["a"]
    assert [(row.id, row.reason, row.detail) for row in decision.rejected] == [("b", RejectReason.DUPLICATE, "of a")]


def test_the_same_row_twice_is_kept_once():
    task = task_of("Mombasa", "Kenya")
    kept, decision = curate_rows([trajectory_of(task)] * 3, [task], CurationConfig())
    assert len(kept) == 1
    assert decision.counts()["in"] == 3


def test_the_order_of_trajectories_does_not_change_the_result():
    tasks = [task_of(f"City{number}", f"Land{number}") for number in range(30)]
    rows = [*(trajectory_of(task) for task in tasks), *(reflecting(task) for task in tasks)]
    config = CurationConfig(without_reflection_share=0.5, correction_copies=2)
    expected = curate_rows(rows, tasks, config)
    random.Random(0).shuffle(rows)
    assert curate_rows(rows, tasks, config) == expected
