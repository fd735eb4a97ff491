"""The attention of the native engine: new tokens of many stretches, each against the keys of its path.

A lane is a batch of stretches that feed equally many tokens (padded). Its scores against the trunks, the
stems and the rows' own slots are three batched products, concatenated for one softmax; the queries of all
rows behind one trunk or stem are folded into one product with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from renshu.engines.tiers import Stretch, Tier
from renshu.tree.attention import cap, softmax

NEVER = torch.iinfo(torch.long).max  # the depth of a key that no query sees


class Reach:
    """One tier as a lane sees it: B rows, each with at most one slot of the tier.

    Folding sorts rows by slot, so that n slots meet w rows each: (B, K, M, X) ↔ (n, K, w · M, X).
    """

    def __init__(
        self,
        tier: Tier,
        stretches: Sequence[Stretch | None],
        ends: Sequence[int],
        *,
        dense: bool,
        device: torch.device,
    ) -> None:
        """stretches: of each row, in this tier. ends: tokens of the path each row may read here.

        dense: use the tier's buffers as they lie; otherwise gather the slots that occur.
        """
        present = [stretch.slot for stretch in stretches if stretch is not None]
        slots = list(range(tier.span)) if dense else list(dict.fromkeys(present))
        index = {slot: n for n, slot in enumerate(slots)}
        self.tier = tier
        self.span = len(slots)
        self.select = None if dense else torch.tensor(slots, device=device)
        begins = [0 if stretch is None else stretch.start for stretch in stretches]
        self.columns = tier.round(max(end - begin for end, begin in zip(ends, begins, strict=True)))
        columns = torch.arange(self.columns, device=device)
        self.depths = torch.tensor(begins, device=device)[:, None] + columns  # (B, C) of the keys
        self.depths[self.depths >= torch.tensor(ends, device=device)[:, None]] = NEVER
        self._fold_order([0 if stretch is None else index[stretch.slot] for stretch in stretches], device)

    def _fold_order(self, places: Sequence[int], device: torch.device) -> None:
        members: list[list[int]] = [[] for _ in range(self.span)]
        for row, place in enumerate(places):
            members[place].append(row)
        self.width = max(map(len, members))
        member = [row for rows in members for row in rows + [0] * (self.width - len(rows))]
        flat = [0] * len(places)
        for place, rows in enumerate(members):
            for offset, row in enumerate(rows):
                flat[row] = place * self.width + offset
        identity = list(range(len(places)))
        self.member = None if member == identity else torch.tensor(member, device=device)
        self.place = None if member == identity else torch.tensor(flat, device=device)

    def fold(self, x: Tensor) -> Tensor:
        if self.member is not None:
            x = x.index_select(0, self.member)
        if self.width == 1:
            return x
        _, heads, m, size = x.shape
        x = x.view(self.span, self.width, heads, m, size).transpose(1, 2)
        return x.reshape(self.span, heads, self.width * m, size)

    def unfold(self, x: Tensor) -> Tensor:
        if self.width > 1:
            _, heads, wide, size = x.shape
            x = x.view(self.span, heads, self.width, wide // self.width, size).transpose(1, 2).flatten(0, 1)
        return x if self.place is None else x.index_select(0, self.place)

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys (n, K, C, D) and values (n, K, C, V)."""
        keys, values = self.tier.buffers(layer)
        if self.select is None:
            keys, values = keys[: self.span], values[: self.span]
        else:
            keys, values = keys.index_select(0, self.select), values.index_select(0, self.select)
        return keys[:, :, : self.columns], values[:, :, : self.columns]


class Lane:
    """B stretches of one tier that feed up to L tokens each; `dense` if it is the lane of decoding rows."""

    def __init__(
        self,
        stretches: Sequence[Stretch],
        tiers: Sequence[Tier],
        ends: Sequence[int],
        *,
        dense: bool,
        device: torch.device,
    ) -> None:
        """tiers: from the first to the lane's own. ends: tokens of each path that the lane may read."""
        self.reaches: list[Reach] = []
        chain: list[Stretch | None] = list(stretches)
        for tier in reversed(tiers):
            here = [s if s is not None and s.tier is tier else None for s in chain]
            if any(here):
                self.reaches.append(Reach(tier, here, ends, dense=dense, device=device))
            chain = [s if h is None else h.parent for s, h in zip(chain, here, strict=True)]
            ends = [0 if s is None else len(s.ids) for s in chain]
        self.depths = torch.cat([reach.depths for reach in self.reaches], dim=1)  # (B, C) of all keys
        self._biases: dict[int | None, Tensor] = {}

    def at(self, positions: Tensor, pick: Tensor | None = None, unpick: Tensor | None = None) -> None:
        """Set the tokens of the next pass. positions: (B, L) depths of the queries.

        pick: (B · L,) which of the lane's n tokens fills each place; unpick: (n,) the place of each token.
        """
        self.positions, self.pick, self.unpick = positions, pick, unpick
        self._biases.clear()

    def attend(
        self, layer: int, query: Tensor, scale: float, window: int | None, softcap: float | None
    ) -> Tensor:
        """query: (n, H, D) of the lane's tokens. Returns (n, H, V)."""
        rows, length = self.positions.shape
        query = query if self.pick is None else query.index_select(0, self.pick)
        buffers = [reach.buffers(layer) for reach in self.reaches]
        heads = buffers[0][0].shape[1]
        folded = query.view(rows, length, heads, -1, query.shape[-1]).permute(0, 2, 3, 1, 4)
        folded = folded.reshape(rows, heads, -1, query.shape[-1]) * scale  # (B, K, H / K · L, D)
        scores = torch.cat(
            [
                reach.unfold(reach.fold(folded) @ keys.transpose(-1, -2))
                for reach, (keys, _) in zip(self.reaches, buffers, strict=True)
            ],
            dim=-1,
        )
        scores = cap(scores, softcap).view(rows, heads, -1, length, scores.shape[-1])
        weights = softmax(scores.add_(self._bias(window, scores.dtype))).flatten(2, 3)
        parts = torch.split_with_sizes(weights, [reach.columns for reach in self.reaches], dim=-1)
        mixed = [
            reach.unfold(reach.fold(part) @ values)
            for reach, part, (_, values) in zip(self.reaches, parts, buffers, strict=True)
        ]
        output = sum(mixed[1:], mixed[0])  # (B, K, H / K · L, V)
        output = output.view(rows, heads, -1, length, output.shape[-1]).permute(0, 3, 1, 2, 4)
        output = output.reshape(rows * length, -1, output.shape[-1])
        return output if self.unpick is None else output.index_select(0, self.unpick)

    def _bias(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """(B, 1, 1, L, C): -inf for keys that are not of the query's past or that the window left behind.

        Layers share it. Adding it is many times faster than filling by a mask that is broadcast.
        """
        if window not in self._biases:
            keys, queries = self.depths[:, None, :], self.positions[:, :, None]
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            bias = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._biases[window] = bias.masked_fill_(hidden, float("-inf"))[:, None, None]
        return self._biases[window]


class Batch:
    """One forward pass of the engine; implements `renshu.tree.Attending`.

    lanes: each with how many consecutive tokens of the pass are its own. writes: for each tier the slots and
    columns (m,) to fill, and which of the n tokens goes there (None: all, in order).
    """

    def __init__(
        self, lanes: Sequence[tuple[Lane, int]], writes: Sequence[tuple[Tier, Tensor, Tensor, Tensor | None]]
    ) -> None:
        self._lanes = lanes
        self._writes = writes

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
        """query: (1, H, n, D), key: (1, K, n, D), value: (1, K, n, V). Returns (1, n, H, V)."""
        queries, keys, values = (x[0].transpose(0, 1) for x in (query, key, value))
        for tier, slots, columns, source in self._writes:
            new = (
                (keys, values)
                if source is None
                else (keys.index_select(0, source), values.index_select(0, source))
            )
            tier.buffers(layer, *new)
            tier.write(layer, *new, slots, columns)
        outputs, begin = [], 0
        for lane, tokens in self._lanes:
            outputs.append(lane.attend(layer, queries[begin : begin + tokens], scale, window, softcap))
            begin += tokens
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None]
