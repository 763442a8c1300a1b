"""The plan, the schedule and the rows: pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_samples import random_rows

from afm_core.config import ConfigError, SftConfig
from afm_core.training.checkpoints import (
    check_disk_space,
    checkpoint_bytes,
    checkpoint_name,
    checkpoint_step,
    superseded,
)
from afm_core.training.plan import micro_batches, training_steps
from afm_core.training.rows import Row, read_rows, write_rows
from afm_core.training.schedule import learning_rate


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3), st.integers(0, 5))
def test_every_row_is_trained_once_an_epoch(rows: int, batch: int, epochs: int, seed: int) -> None:
    order = [row for step in training_steps(rows, batch, epochs, seed) for row in step]
    assert len(order) == rows * epochs
    for epoch in range(epochs):
        assert sorted(order[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_epochs_differ_and_seeds_differ() -> None:
    flat = [row for step in training_steps(30, 5, 2, 0) for row in step]
    assert flat[:30] != flat[30:]
    assert training_steps(30, 5, 1, 0) != training_steps(30, 5, 1, 1)
    assert training_steps(30, 5, 1, 0) == training_steps(30, 5, 1, 0)


def test_a_fraction_of_an_epoch_takes_the_beginning_of_its_order() -> None:
    whole = training_steps(10, 3, 1, 7)
    assert training_steps(10, 3, 0.5, 7) == [whole[0], whole[1][:2]]
    assert len(training_steps(3, 2, 0.01, 0)) == 1
    assert training_steps(0, 2, 1, 0) == []


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4))
def test_micro_batches_hold_every_row_once_and_ranks_do_equally_many(lengths: list[int], world_size: int) -> None:
    rows = list(range(len(lengths)))
    ranks = micro_batches(rows, lengths, 30, world_size)
    assert len(ranks) == world_size
    assert len({len(batches) for batches in ranks}) == 1
    counted = [row for batches in ranks for batch in batches if batch.counted for row in batch.rows]
    assert sorted(counted) == rows
    assert all(sum(lengths[row] for row in batch.rows) <= 30 for batches in ranks for batch in batches)


def test_a_row_that_fits_no_micro_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="31"):
        micro_batches([0], [31], 30, 1)


def test_the_schedule_warms_up_peaks_and_ends_at_its_share() -> None:
    config = SftConfig(learning_rate=1.0, warmup_share=0.2, final_learning_rate_share=0.1)
    rates = [learning_rate(step, 10, config) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0]
    assert rates[-1] == pytest.approx(0.1)
    assert rates[2:] == sorted(rates[2:], reverse=True)
    assert learning_rate(0, 1, config) == 1.0


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1))
def test_the_learning_rate_is_never_zero_or_above_its_peak(total: int, warmup: float, final: float) -> None:
    config = SftConfig(learning_rate=1.0, warmup_share=warmup, final_learning_rate_share=max(final, 0.01))
    assert all(0 < learning_rate(step, total, config) <= 1 for step in range(total))


def test_rows_survive_their_file(tmp_path) -> None:
    rows = random_rows(5)
    write_rows(rows, tmp_path / "rows.parquet")
    assert read_rows(tmp_path / "rows.parquet") == rows


def test_the_first_token_of_a_row_never_counts() -> None:
    assert Row("a", (1, 2, 3), (1, 0, 1)).supervised == 1


def test_checkpoints_that_are_neither_new_nor_good_are_superseded() -> None:
    scores = {20: 0.5, 40: 0.1, 60: 0.3, 80: 0.2}
    assert superseded(scores, keep_last=1, keep_best=0) == [20, 40, 60]
    assert superseded(scores, keep_last=1, keep_best=1) == [20, 60]
    assert superseded(scores, keep_last=4, keep_best=0) == []


def test_checkpoint_names_sort_by_step() -> None:
    assert checkpoint_name(20) < checkpoint_name(100)
    assert checkpoint_step(checkpoint_name(20)) == 20


def test_too_little_disk_is_refused_with_both_figures(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 1_000_000_000})())
    needed = checkpoint_bytes(134_515_008, 134_515_008, 4)
    assert needed == 134_515_008 * 12
    with pytest.raises(ConfigError, match=r"needs 5\.38 GB .*available are 1\.00 GB"):
        check_disk_space([tmp_path], needed, kept=1, model=538_060_032)
    check_disk_space([tmp_path], 1000, kept=1, model=1000)
