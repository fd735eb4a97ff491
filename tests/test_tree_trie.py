"""The trie, its packing, and who sees whom: against numbers worked by hand and brute force."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from renshu.tree import TokenTree, TreeAttention, pack, tiles
from renshu.types import Row, Segment, row_of


def row(*ids: int, trained: tuple[int, ...] = (), group: str = "") -> Row:
    return Row(ids, tuple(at in trained for at in range(len(ids))), group=group)


def prefixes(rows: list[Row]) -> set[tuple[int, ...]]:
    return {row.ids[:end] for row in rows for end in range(1, len(row.ids) + 1)}


rows_of = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=8).map(
        lambda cells: Row(tuple(i for i, _ in cells), (False, *(t for _, t in cells[1:])))
    ),
    min_size=1,
    max_size=8,
)


def test_a_trie_worked_by_hand() -> None:
    rows = [row(5, 3, 7, 2, trained=(1, 3)), row(5, 3, 4, trained=(2,)), row(5, 3, 4, trained=(1, 2)), row(6)]
    tree = TokenTree.build(rows)
    # depth first, children by token: 5, 3, 4 | 7, 2 | 6
    assert tree.ids.tolist() == [5, 3, 4, 7, 2, 6]
    assert tree.positions.tolist() == [0, 1, 2, 2, 3, 0]
    assert tree.parents.tolist() == [-1, 0, 1, 1, 3, -1]
    assert tree.ends.tolist() == [5, 5, 3, 5, 5, 6]
    assert tree.source.tolist() == [0, 3, 1, 0, 1]
    assert tree.target.tolist() == [3, 2, 4, 3, 4]
    assert (len(tree), tree.naive) == (6, 11)
    assert tree.path(4).tolist() == [0, 1, 3, 4]


def test_only_sampled_tokens_are_targets() -> None:
    """Prompt 5, model 4, tool 6, model 3 tokens (trl#5144): 7 trained tokens, never the tool's."""
    path = [Segment(tuple(range(n * 10, n * 10 + size)), sampled) for n, (size, sampled) in
            enumerate([(5, False), (4, True), (6, False), (3, True)])]  # fmt: skip
    episode = row_of(path)
    assert (sum(episode.trained), len(episode.trained)) == (7, 18)
    assert TokenTree.build([episode]).target.tolist() == [10, 11, 12, 13, 30, 31, 32]


@given(rows_of)
def test_tree_against_brute_force(rows: list[Row]) -> None:
    tree = TokenTree.build(rows)
    assert len(tree) == len(prefixes(rows))
    paths = [tuple(tree.ids[tree.path(node)].tolist()) for node in range(len(tree))]
    assert set(paths) == prefixes(rows)
    wanted = [(r.ids[:at], r.ids[at]) for r in rows for at in range(len(r.ids)) if r.trained[at]]
    assert [(paths[s], t) for s, t in zip(tree.source, tree.target, strict=True)] == wanted
    for query, key in itertools.product(range(len(tree)), repeat=2):
        assert (key in tree.path(query)) == (key <= query < tree.ends[key])


@given(rows_of, st.sampled_from([1, 2, 5, 64]), st.sampled_from([None, 1, 3]))
def test_tiles_show_every_query_its_own_past_once(rows: list[Row], size: int, window: int | None) -> None:
    tree = TokenTree.build(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", size)
        batches = tiles._batches(tree, window)
    seen: dict[int, list[int]] = {}
    for batch in batches:
        for queries, keys, visible in zip(batch.queries, batch.keys, batch.visible, strict=True):
            for query, shown in zip(queries.tolist(), visible, strict=True):
                seen[query] = keys[shown].tolist()
    for node in range(len(tree)):
        past = tree.path(node)[-window:] if window else tree.path(node)
        assert seen.pop(node) == past.tolist()
    assert not seen


@given(rows_of, st.sampled_from([None, 2]), st.sampled_from([None, 1.5]), st.sampled_from([1, 3]))
def test_attend_against_a_dense_mask(
    rows: list[Row], window: int | None, softcap: float | None, groups: int
) -> None:
    """Float64, 2 key heads, 2 or 6 query heads, values narrower than keys."""
    tree = TokenTree.build(rows)
    n = len(tree)
    torch.manual_seed(0)
    shapes = ((1, 2 * groups, n, 4), (1, 2, n, 4), (1, 2, n, 3))
    query, key, value = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    mask = torch.tensor([[k in tree.path(q)[-(window or n) :] for k in range(n)] for q in range(n)])
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * 0.3
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    expected = (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE", 4)
        found = TreeAttention(tree).attend(
            layer=0, query=query, key=key, value=value, scale=0.3, window=window, softcap=softcap
        )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    pull = torch.randn(expected.shape, dtype=torch.float64)
    for a, b in zip(
        *(torch.autograd.grad(x, (query, key, value), pull) for x in (found, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_masks_stay_far_below_a_square() -> None:
    """32 branches of 96 tokens behind 64: 3,136 nodes see at most 64 + 96 + a tile, not 3,136."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 9, 64).tolist()
    rows = [row(*prompt, 100 + branch, *rng.integers(0, 9, 95).tolist()) for branch in range(32)]
    tree = TokenTree.build(rows)
    assert len(tree) == 64 + 32 * 96
    entries = sum(batch.visible.numel() for batch in tiles._batches(tree, None))
    assert entries <= len(tree) * (64 + 96 + tiles.TILE)
    lone = TokenTree.build([rows[0], row(*range(200, 1000))])
    # Out of reach of a window of 8: such keys are not even gathered.
    assert (
        max(batch.keys.shape[1] for batch in tiles._batches(lone, 8)) == tiles.TILE + 8
    )  # 7 before it, aligned


def test_packing_worked_by_hand() -> None:
    a = [row(1, 2, 3, 5, group="a"), row(1, 2, 3, 4, group="a")]  # 5 distinct tokens
    b = [row(1, 2, 6, group="b"), row(1, 2, 7, group="b")]  # 4, of which 1 2 are shared with a
    lone = row(9, 9, 9)
    rows = [a[0], b[0], a[1], b[1], lone]
    assert pack(rows, 7) == [[0, 2, 1, 3], [4]]
    assert pack(rows, 6) == [[0, 2], [1, 3], [4]]
    assert pack(rows, 10) == [[0, 2, 1, 3, 4]]
    assert pack(rows, 4) == [[2], [0], [1, 3], [4]]  # a alone exceeds the budget: it is cut
    assert pack(rows, 2) == [[2], [0], [1], [3], [4]]  # even a row does: each by itself
    assert pack(rows, 9, "padded") == [[0, 2], [1, 3, 4]]
    assert pack([], 9) == []


def test_packing_of_whole_groups_worked_by_hand() -> None:
    """A loss that compares the rows of a group needs them in one micro-batch, whatever the budget."""
    a = [row(1, 2, 3, 5, group="a"), row(1, 2, 3, 4, group="a")]  # 5 distinct tokens
    b = [row(1, 2, 6, group="b"), row(1, 2, 7, group="b")]  # 4, of which 1 2 are shared with a
    rows = [a[0], b[0], a[1], b[1], row(9, 9, 9)]
    assert pack(rows, 7, whole_groups=True) == [[0, 2, 1, 3], [4]]
    assert pack(rows, 4, whole_groups=True) == [[0, 2], [1, 3], [4]]
    assert pack(rows, 1, whole_groups=True) == [[0, 2], [1, 3], [4]]
    assert pack(rows, 12, "padded", whole_groups=True) == [[0, 2], [1, 3, 4]]


@given(rows_of, st.integers(1, 30), st.integers(1, 4))
def test_packing_never_cuts_a_whole_group(rows: list[Row], budget: int, groups: int) -> None:
    rows = [replace(row, group=str(index % groups)) for index, row in enumerate(rows)]
    batches = pack(rows, budget, whole_groups=True)
    assert sorted(itertools.chain(*batches)) == list(range(len(rows)))
    for batch in batches:
        inside = {rows[i].group for i in batch}
        assert sum(row.group in inside for row in rows) == len(batch)
        assert len(inside) == 1 or len(prefixes([rows[i] for i in batch])) <= budget


@given(rows_of, st.integers(1, 30))
def test_packing_keeps_the_budget_and_every_row(rows: list[Row], budget: int) -> None:
    batches = pack(rows, budget)
    assert sorted(itertools.chain(*batches)) == list(range(len(rows)))
    for batch in batches:
        assert len(batch) == 1 or len(prefixes([rows[i] for i in batch])) <= budget
