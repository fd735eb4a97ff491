"""Cutting a batch into micro-batches by what they cost to compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from renshu.tree.trie import distinct_tokens
from renshu.types import Row

Layout = Literal["tree", "padded"]


def pack(
    rows: Sequence[Row], budget: int, layout: Layout = "tree", *, whole_groups: bool = False
) -> list[list[int]]:
    """Micro-batches of row indices that cost at most `budget` computed tokens each.

    The cost of a micro-batch is the number of its distinct tokens (`layout="tree"`), or rows × longest row
    (`"padded"`). Rows of one group stay together. A group that alone exceeds the budget is cut so that rows
    with most in common stay together, or, with `whole_groups`, is a micro-batch of its own; so is a row that
    is longer than the budget. Groups keep the order of their first rows: equal rows give equal
    micro-batches, and every row occurs in exactly one.
    """
    cost = distinct_tokens if layout == "tree" else padded_tokens
    groups = _groups(rows)
    pieces = groups if whole_groups else [p for group in groups for p in _cut(group, rows, budget, cost)]
    batches: list[list[int]] = []
    for piece in pieces:
        if batches and cost([rows[i] for i in batches[-1] + piece]) <= budget:
            batches[-1].extend(piece)
        else:
            batches.append(list(piece))
    return batches


def deal(
    rows: Sequence[Row], size: int, budget: int, layout: Layout = "tree", *, whole_groups: bool = False
) -> list[list[list[int]]]:
    """The micro-batches of each of `size` processes, as `pack` makes them of its share of the rows.

    Groups are not cut: the largest go first, each to the process that has least to compute by then.
    """
    shares = _shares(rows, size, distinct_tokens if layout == "tree" else padded_tokens)
    return [
        [[share[i] for i in batch] for batch in pack(own, budget, layout, whole_groups=whole_groups)]
        for share in shares
        for own in [[rows[i] for i in share]]
    ]


def _groups(rows: Sequence[Row]) -> list[list[int]]:
    """Indices of the rows of each group, in the order of their first rows; a row without one is its own."""
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.group or f"\x00{index}", []).append(index)
    return list(groups.values())


def _shares(rows: Sequence[Row], size: int, cost: Callable[[Sequence[Row]], int]) -> list[list[int]]:
    """Indices for each process, in order."""
    if size == 1:
        return [list(range(len(rows)))]
    costs = [(cost([rows[i] for i in group]), group) for group in _groups(rows)]
    shares: list[list[int]] = [[] for _ in range(size)]
    loads = [0] * size
    for tokens, group in sorted(costs, key=lambda pair: -pair[0]):
        least = loads.index(min(loads))
        shares[least] += group
        loads[least] += tokens
    return [sorted(share) for share in shares]


def padded_tokens(rows: Sequence[Row]) -> int:
    """What the rows cost side by side, each padded to the longest."""
    return len(rows) * max((len(row.ids) for row in rows), default=0)


def _cut(
    group: list[int], rows: Sequence[Row], budget: int, cost: Callable[[Sequence[Row]], int]
) -> list[list[int]]:
    """A group as it is if it fits the budget, else in pieces that do."""
    if cost([rows[i] for i in group]) <= budget:
        return [group]
    pieces: list[list[int]] = []
    for index in sorted(group, key=lambda i: rows[i].ids):
        if pieces and cost([rows[i] for i in [*pieces[-1], index]]) <= budget:
            pieces[-1].append(index)
        else:
            pieces.append([index])
    return pieces
