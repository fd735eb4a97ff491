"""What stages with data of their own learn from: which rows are usable, and in which order they are seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from renshu.errors import DataError
from renshu.seeding import generator
from renshu.types import Row

ItemT = TypeVar("ItemT")
MAX_DROPPED = 0.05  # above this share of lost rows the settings are wrong, not the data


@dataclass(frozen=True)
class Usable:
    """rows: what can be trained on; `truncated` of them lost their end. dropped: how many were left out."""

    rows: tuple[Row, ...]
    truncated: int
    dropped: int


def usable(rows: Sequence[Row], max_length: int) -> Usable:
    """Cut rows to `max_length` tokens; drop those in which nothing is left to train.

    Raises DataError if there are no rows, or more than 5 % would be dropped.
    """
    if not rows:
        raise DataError("no rows to train on: the data is empty")
    kept: list[Row] = []
    truncated = 0
    for row in rows:
        cut = Row(row.ids[:max_length], row.trained[:max_length], group=row.group)
        if any(cut.trained):
            kept.append(cut)
            truncated += len(row.ids) > max_length
    dropped = len(rows) - len(kept)
    if dropped > MAX_DROPPED * len(rows):
        untrained = sum(not any(row.trained) for row in rows)
        raise DataError(
            f"{dropped} of {len(rows)} rows have no token to train on within max_length: {max_length} "
            f"({untrained} have none at all): raise max_length, or look at how the data is read"
        )
    return Usable(tuple(kept), truncated, dropped)


class Batches(Generic[ItemT]):
    """A source of batches for the loop: `batches(step)` gives the same items whenever it is asked.

    Every epoch is a permutation by its own seed; batches run on across epochs, so all but the last are full.
    Raises DataError without items.
    """

    def __init__(self, items: Sequence[ItemT], *, per_step: int, epochs: int, seed: int) -> None:
        if not items:
            raise DataError("nothing to train on: the data is empty")
        self.items, self.per_step, self.seed = items, per_step, seed
        self._seen = epochs * len(items)
        self.steps = math.ceil(self._seen / per_step)

    def __call__(self, step: int) -> list[ItemT]:
        start = step * self.per_step
        positions = range(start, min(start + self.per_step, self._seen))
        places = [divmod(position, len(self.items)) for position in positions]
        orders = {epoch: self._order(epoch) for epoch in {epoch for epoch, _ in places}}
        return [self.items[orders[epoch][index]] for epoch, index in places]

    def _order(self, epoch: int) -> list[int]:
        order = list(range(len(self.items)))
        generator("sft", self.seed, "epoch", epoch).shuffle(order)  # the name that it always had
        return order
