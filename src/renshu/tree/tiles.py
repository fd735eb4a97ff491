"""Attention on a token tree: exact, without an N×N mask, in a few large products a layer.

The nodes are cut, in depth-first order, into tiles of `TILE` queries. All that a tile's queries can see is
the path to the tile's first node, and the tile itself: an earlier node k that any query q of a tile sees has
k < start <= q < ends[k], hence lies on the path to the start. So each tile is a small dense problem of `TILE`
queries by path + `TILE` keys; tiles with about equally many keys are computed at once; their masks have
n × path entries in all. The heads that share a key head are folded into the queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from renshu.tree.attention import cap, softmax
from renshu.tree.trie import Ints, TokenTree

Bools = npt.NDArray[np.bool_]

TILE = 64  # queries; a smaller tile gathers its path more often, a larger one computes more masked scores
_SPREAD = 0.8  # tiles are computed at once while the shortest has this share of the longest's keys
_ALIGN = 8  # keys are padded to a multiple of this: some GPU kernels ask for it


@dataclass(frozen=True)
class _Batch:
    """T tiles computed at once: nodes of the queries (T, L) and keys (T, S), and who sees whom (T, L, S)."""

    queries: Tensor
    keys: Tensor
    visible: Tensor


class TreeAttention:
    """A `TokenTree` as the `tree=` keyword of a model: implements `renshu.tree.attention.Attending`.

    Every index and mask is built once, at the first layer that needs it, and serves all others.
    """

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self._plans: dict[tuple[object, ...], tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]] = {}

    def attend(
        self,
        *,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """See `Attending.attend`. All layers share one tree, so `layer` plays no part."""
        heads, nodes, width = query.shape[1:]
        shared = heads // key.shape[1]
        folded = query[0].view(-1, shared, nodes, width).transpose(1, 2)  # (K, n, G, D)
        batches, order = self._plan(window, shared, query.dtype, query.device)
        outputs = []
        for queries, keys, bias in batches:
            (tiles, length), past = queries.shape, keys.shape[1]
            q = folded[:, queries.flatten()].reshape(-1, tiles, length * shared, width)  # (K, T, L·G, D)
            k = key[0][:, keys.flatten()].view(-1, tiles, past, width)  # (K, T, S, D)
            v = value[0][:, keys.flatten()].view(-1, tiles, past, value.shape[-1])  # (K, T, S, V)
            output = _attend(q, k, v, bias, scale, softcap)
            outputs.append(output.view(-1, tiles * length, shared, value.shape[-1]))
        gathered = torch.cat(outputs, dim=1)[:, order]  # (K, n, G, V)
        return gathered.transpose(0, 1).reshape(1, nodes, heads, value.shape[-1])

    def _plan(
        self, window: int | None, shared: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[list[tuple[Tensor, Tensor, Tensor]], Tensor]:
        """Of each batch: queries (T, L), keys (T, S), bias (1, T, L·G, S). Then where outputs lie, (n,)."""
        name = (window, shared, dtype, device)
        if name not in self._plans:
            batches = _batches(self.tree, window)
            places = torch.empty(len(self.tree), dtype=torch.long)
            written = torch.cat([batch.queries.flatten() for batch in batches])
            places[written] = torch.arange(len(written))
            plan = []
            for batch in batches:
                bias = torch.zeros(batch.visible.shape, dtype=dtype).masked_fill_(
                    ~batch.visible, float("-inf")
                )
                bias = bias.repeat_interleave(shared, dim=1)[None]
                plan.append((batch.queries.to(device), batch.keys.to(device), bias.to(device)))
            self._plans[name] = plan, places.to(device)
        return self._plans[name]


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, scale: float, softcap: float | None) -> Tensor:
    """Attention of each tile, (K, T, L·G, V)."""
    if softcap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)

    def capped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return softmax(cap(q @ k.transpose(-1, -2) * scale, softcap) + bias) @ v

    # No fused kernel knows the cap; recomputing the scores keeps the backward pass as modest as SDPA's.
    output: Tensor = checkpoint(capped, q, k, v, use_reentrant=False)
    return output


def _batches(tree: TokenTree, window: int | None) -> list[_Batch]:
    """Tiles with about equally many keys, together."""
    starts = range(0, len(tree), TILE)
    seen = [_seen(tree, start, window) for start in starts]
    longest_first = sorted(range(len(seen)), key=lambda tile: -len(seen[tile]))
    batches: list[list[int]] = []
    for tile in longest_first:
        if batches and len(seen[tile]) >= _SPREAD * len(seen[batches[-1][0]]):
            batches[-1].append(tile)
        else:
            batches.append([tile])
    return [_batch(tree, [starts[i] for i in tiles], [seen[i] for i in tiles], window) for tiles in batches]


def _seen(tree: TokenTree, start: int, window: int | None) -> Ints:
    """The keys that any query of the tile at `start` sees: on the path to its first node, and its own."""
    own = np.arange(start, min(start + TILE, len(tree)))
    keys = np.concatenate([tree.path(start)[:-1], own])
    if window is None:
        return keys  # the first query sees the whole path
    return keys[_visible(tree, own[:, None], keys, window).any(axis=0)]


def _visible(tree: TokenTree, queries: Ints, keys: Ints, window: int | None) -> Bools:
    """Whether each query sees each key: node numbers of shapes that broadcast."""
    visible = (keys <= queries) & (queries < tree.ends[keys])
    if window is not None:
        visible &= tree.positions[queries] - tree.positions[keys] < window
    return visible


def _batch(tree: TokenTree, starts: list[int], seen: list[Ints], window: int | None) -> _Batch:
    length = min(TILE, len(tree))
    past = -(-max(map(len, seen)) // _ALIGN) * _ALIGN
    # The last tile is filled with copies of the last node, whose outputs agree; missing keys are hidden.
    queries = np.minimum(np.asarray(starts)[:, None] + np.arange(length), len(tree) - 1)
    keys = np.stack([np.pad(nodes, (0, past - len(nodes))) for nodes in seen])
    real = np.arange(past) < np.asarray([len(nodes) for nodes in seen])[:, None]
    visible = _visible(tree, queries[:, :, None], keys[:, None, :], window) & real[:, None, :]
    return _Batch(torch.from_numpy(queries), torch.from_numpy(keys), torch.from_numpy(visible))
