"""Rows of supervised fine-tuning: order, truncation, what is dropped; minibatches of any training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.algorithms import Credit
from renshu.errors import DataError
from renshu.train import Batches
from renshu.train.batches import usable
from renshu.train.minibatch import minibatches
from renshu.types import Row


def row(prompt: int, answer: int, mark: int = 0) -> Row:
    return Row((mark,) * (prompt + answer), (False,) * prompt + (True,) * answer)


def test_f01_a_row_without_room_for_its_answer_is_dropped_and_counted() -> None:
    rows = [row(40, 6), *[row(5, 6)] * 19]
    made = usable(rows, 32)
    assert (len(made.rows), made.dropped, made.truncated) == (19, 1, 0)
    with pytest.raises(
        DataError, match=r"2 of 20 rows have no token to train on within max_length: 32 \(0 have"
    ):
        usable([row(40, 6), *rows[:-1]], 32)
    with pytest.raises(DataError, match="1 of 1 rows"):
        usable([row(40, 6)], 32)


def test_f01_rows_that_never_had_an_answer_are_told_apart() -> None:
    with pytest.raises(DataError, match=r"1 of 2 rows .* \(1 have none at all\)"):
        usable([row(5, 0), row(5, 1)], 32)


def test_a_long_answer_is_cut_at_its_end_and_counted() -> None:
    made = usable([row(30, 6)], 32)
    assert (made.truncated, made.dropped) == (1, 0)
    assert made.rows[0].trained == (False,) * 30 + (True,) * 2


def test_no_data_is_an_error() -> None:
    with pytest.raises(DataError, match="the data is empty"):
        Batches([], per_step=1, epochs=1, seed=0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3))
def test_every_epoch_sees_every_row_once(count: int, per_step: int, epochs: int, seed: int) -> None:
    rows = [row(1, 1, mark) for mark in range(count)]
    batches = Batches(rows, per_step=per_step, epochs=epochs, seed=seed)
    steps = [batches(step) for step in range(batches.steps)]
    seen = [one.ids[0] for batch in steps for one in batch]
    assert all(len(batch) == per_step for batch in steps[:-1])
    assert 1 <= len(steps[-1]) <= per_step
    for epoch in range(epochs):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert batches(batches.steps) == []


def test_orders_differ_between_epochs_and_seeds_and_nothing_else() -> None:
    rows = [row(1, 1, mark) for mark in range(20)]
    orders = {
        (seed, epoch): tuple(one.ids[0] for one in Batches(rows, per_step=20, epochs=2, seed=seed)(epoch))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert Counter(Counter(orders.values()).values()) == {1: 4}
    again = Batches(rows, per_step=20, epochs=2, seed=1)
    again(1)
    assert tuple(one.ids[0] for one in again(0)) == orders[1, 0]


def test_minibatches_hold_whole_groups_and_all_tokens() -> None:
    rows = tuple(Row((0, i, i), (False, True, True), (-1.0, -1.0), group=f"{i // 2}") for i in range(10))
    credit = Credit(rows, tuple(float(i % 4 != 0) for i in range(10)))

    def deal(some: Sequence[Row]) -> list[list[list[int]]]:
        return [[[i] for i in range(len(some))]]

    parts = minibatches(credit, 2, skip_zero=True, deal=deal, device=torch.device("cpu"))
    groups = [{row.group for micro in part.micro for row in micro.rows} for part in parts]
    assert groups == [{"0", "1", "2"}, {"3", "4"}]
    assert [part.counts.rows for part in parts] == [6, 4]
    assert [part.counts.tokens for part in parts] == [12, 8]
    assert [part.counts.mean_tokens for part in parts] == [10, 10]
    assert [part.skipped for part in parts] == [2, 1]
    assert len(minibatches(credit, 9, skip_zero=False, deal=deal, device=torch.device("cpu"))) == 5
