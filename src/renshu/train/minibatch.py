"""From credit to minibatches: whole groups, cut into micro-batches that fit the token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from renshu.algorithms import Counts, Credit, Extras
from renshu.types import Row

Deal = Callable[[Sequence[Row]], list[list[list[int]]]]  # the micro-batches of each process, as indices
NO_EXTRAS = Extras()


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass, on the model's device; tensors as in `LossInputs`."""

    rows: tuple[Row, ...]
    row: Tensor
    old_logprobs: Tensor | None
    policy_logprobs: Tensor | None
    reference_logprobs: Tensor | None
    old_values: Tensor | None
    advantages: Tensor | None
    returns: Tensor | None
    labels: Tensor | None


@dataclass(frozen=True)
class Minibatch:
    """What one optimiser update learns from.

    micro: what this process has to do. passes: what the one with most has; 0: nothing has a gradient.
    shortest: the row that is cheapest to pass through the model. skipped: rows spared the forward pass.
    """

    micro: tuple[MicroBatch, ...]
    passes: int
    shortest: Row
    counts: Counts
    skipped: int


def learning(credit: Credit, *, skip_zero: bool) -> list[bool]:
    """Which rows have a gradient: with `skip_zero`, those with an advantage that is not zero."""
    if not skip_zero or credit.advantages is None:
        return [True] * len(credit.rows)
    return [any(worth) if isinstance(worth, tuple) else worth != 0.0 for worth in credit.advantages]


def minibatches(
    credit: Credit,
    count: int,
    *,
    extras: Extras = NO_EXTRAS,
    skip_zero: bool,
    deal: Deal,
    rank: int = 0,
    device: torch.device,
) -> list[Minibatch]:
    """Cut `credit` into `count` minibatches of whole groups, in order; fewer where there are fewer groups.

    rank: the process whose micro-batches are made.
    """
    parts = [part for part in _by_groups(credit.rows, count) if part]
    mean_tokens = sum(sum(row.trained) for row in credit.rows) / max(1, len(parts))
    learns = learning(credit, skip_zero=skip_zero)
    built = []
    for part in parts:
        rows = [credit.rows[i] for i in part]
        counts = Counts(len(rows), sum(sum(row.trained) for row in rows), mean_tokens)
        active = [i for i in part if learns[i]]
        dealt = deal([credit.rows[i] for i in active])
        own = [[active[j] for j in indices] for indices in dealt[rank]]
        micro = tuple(_micro(credit, extras, indices, device) for indices in own)
        shortest = min(rows, key=lambda row: (not any(row.trained), len(row.ids)))
        built.append(Minibatch(micro, max(map(len, dealt)), shortest, counts, len(part) - len(active)))
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


def _micro(credit: Credit, extras: Extras, indices: Sequence[int], device: torch.device) -> MicroBatch:
    rows = tuple(credit.rows[i] for i in indices)
    lengths = [sum(row.trained) for row in rows]

    def joined(values: Sequence[Tensor] | None) -> Tensor | None:
        return None if values is None else torch.cat([values[i] for i in indices]).to(device)

    def tokens(values: Sequence[float | tuple[float, ...]] | None) -> Tensor | None:
        if values is None:
            return None
        spread = [_of_tokens(values[i], length) for i, length in zip(indices, lengths, strict=True)]
        return torch.tensor([value for row in spread for value in row], device=device)

    old = labels = None
    if all(row.logprobs is not None for row in rows):
        old = torch.tensor([logprob for row in rows for logprob in row.logprobs or ()], device=device)
    if credit.labels is not None:
        labels = torch.tensor([credit.labels[i] for i in indices], device=device)
    return MicroBatch(
        rows=rows,
        row=torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths)).to(device),
        old_logprobs=old,
        policy_logprobs=joined(extras.policy),
        reference_logprobs=joined(extras.reference),
        old_values=joined(extras.values),
        advantages=tokens(credit.advantages),
        returns=tokens(credit.returns),
        labels=labels,
    )


def _of_tokens(value: float | tuple[float, ...], length: int) -> Sequence[float]:
    """One number for each trained token of a row."""
    if not isinstance(value, tuple):
        return [value] * length
    if len(value) != length:
        raise ValueError(f"{length} trained tokens but {len(value)} values")
    return value
