"""The token trie: rows merged so that every distinct token (told apart by all before it) is one node."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from renshu.types import Row

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TokenTree:
    """A trie of n nodes in depth-first order, and where each trained token of the rows is found in it.

    In this order the descendants of a node directly follow it, so one number a node tells the whole ancestry:
    node k lies on the path to node q exactly if `k <= q < ends[k]`.

    ids: token of each node, (n,). positions: its depth, equal to its position in all rows that hold it, (n,).
    parents: the node before, -1 at the start of a row, (n,). ends: the node after its last descendant, (n,).
    source: for each trained token, in row order then token order, the node whose logits predict it, (N,).
    target: the trained token's id, (N,). naive: tokens of all rows together, every copy counted.
    """

    ids: Ints
    positions: Ints
    parents: Ints
    ends: Ints
    source: Ints
    target: Ints
    naive: int

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def build(cls, rows: Sequence[Row]) -> TokenTree:
        """Merge rows; nothing is lost or trimmed: `len(tree)` is the size of the trie of all their tokens."""
        naive = sum(len(row.ids) for row in rows)
        ids, positions, parents, ends = (np.empty(naive, dtype=np.int64) for _ in range(4))
        paths: dict[int, Ints] = {}
        before = path = np.empty(0, dtype=np.int64)  # the row visited last: its tokens and its nodes
        size = 0
        # Sorted rows walk the trie depth first: nodes a row does not share with the next are left for good.
        for index in sorted(range(len(rows)), key=lambda i: rows[i].ids):
            row = np.asarray(rows[index].ids, dtype=np.int64)
            shared = common_prefix(before, row)
            ends[path[shared:]] = size
            new = np.arange(size, size + len(row) - shared)
            path = paths[index] = np.concatenate([path[:shared], new])
            ids[new], positions[new] = row[shared:], np.arange(shared, len(row))
            parents[new] = np.concatenate([[-1], path])[shared : len(row)]
            before, size = row, size + len(new)
        ends[path] = size
        trained = [np.flatnonzero(row.trained) for row in rows]
        source = [paths[index][at - 1] for index, at in enumerate(trained)]
        target = [np.asarray(row.ids, dtype=np.int64)[at] for row, at in zip(rows, trained, strict=True)]
        return cls(
            ids=ids[:size],
            positions=positions[:size],
            parents=parents[:size],
            ends=ends[:size],
            source=np.concatenate([before[:0], *source]),
            target=np.concatenate([before[:0], *target]),
            naive=naive,
        )

    def path(self, node: int) -> Ints:
        """The nodes from the start of a row to `node`, itself included: (positions[node] + 1,)."""
        nodes = np.empty(self.positions[node] + 1, dtype=np.int64)
        for depth in range(len(nodes) - 1, -1, -1):
            nodes[depth] = node
            node = int(self.parents[node])
        return nodes


def common_prefix(a: Ints, b: Ints) -> int:
    """How many tokens two rows share from their start."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def distinct_tokens(rows: Sequence[Row]) -> int:
    """The size of the rows' trie, without building it."""
    ordered = [np.asarray(ids, dtype=np.int64) for ids in sorted(row.ids for row in rows)]
    shared = sum(common_prefix(a, b) for a, b in itertools.pairwise(ordered))
    return sum(map(len, ordered)) - shared
