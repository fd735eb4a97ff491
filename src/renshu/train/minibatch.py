"""From credit to minibatches: whole groups, cut into micro-batches that fit the token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from renshu.algorithms import Counts, Credit
from renshu.types import Row

Pack = Callable[[Sequence[Row]], list[list[int]]]


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass. row, old_logprobs: (N,); advantages: (R,); on the model's device."""

    rows: tuple[Row, ...]
    row: Tensor
    old_logprobs: Tensor | None
    advantages: Tensor | None


@dataclass(frozen=True)
class Minibatch:
    """What one optimiser update learns from. `micro` may be empty: nothing in it has a gradient."""

    micro: tuple[MicroBatch, ...]
    counts: Counts
    skipped: int  # rows spared the forward pass


def minibatches(
    credit: Credit, count: int, *, skip_zero: bool, pack: Pack, device: torch.device
) -> list[Minibatch]:
    """Cut `credit` into `count` minibatches of whole groups, in order; fewer where there are fewer groups."""
    parts = [part for part in _by_groups(credit.rows, count) if part]
    mean_tokens = sum(sum(row.trained) for row in credit.rows) / max(1, len(parts))
    built = []
    for part in parts:
        rows = [credit.rows[i] for i in part]
        counts = Counts(len(rows), sum(sum(row.trained) for row in rows), mean_tokens)
        active = [i for i in part if not (skip_zero and credit.advantages and credit.advantages[i] == 0.0)]
        packs = pack([credit.rows[i] for i in active]) if active else []
        micro = tuple(_micro(credit, [active[j] for j in indices], device) for indices in packs)
        built.append(Minibatch(micro, counts, len(part) - len(active)))
    return built


def _by_groups(rows: Sequence[Row], count: int) -> list[list[int]]:
    """Indices of rows in `count` parts with nearly as many groups each; a row without a group is its own."""
    groups: dict[str | int, list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.group or index, []).append(index)
    parts: list[list[int]] = [[] for _ in range(count)]
    for number, members in enumerate(groups.values()):
        parts[number * count // len(groups)] += members
    return parts


def _micro(credit: Credit, indices: Sequence[int], device: torch.device) -> MicroBatch:
    rows = tuple(credit.rows[i] for i in indices)
    row = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor([sum(r.trained) for r in rows]))
    old = advantages = None
    if all(r.logprobs is not None for r in rows):
        old = torch.tensor([lp for r in rows for lp in r.logprobs or ()], device=device)
    if credit.advantages is not None:
        advantages = torch.tensor([credit.advantages[i] for i in indices], device=device)
    return MicroBatch(rows, row.to(device), old, advantages)
