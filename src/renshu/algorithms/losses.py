"""Pieces of losses on flat token tensors: (N,) tokens of R rows, `row` (N,) says which token is whose."""

from __future__ import annotations

import torch
from torch import Tensor

# A ratio beyond e^20 is no change of policy but a broken sampler. Without the bound exp overflows to inf, and
# its gradient is NaN even where clipping discards the value.
LOG_RATIO_LIMIT = 20.0


def row_sums(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Sum of each row's tokens: (N,) -> (R,). A row without tokens sums to 0."""
    return values.new_zeros(rows).index_add(0, row, values)


def row_means(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Mean over each row's tokens: (N,) -> (R,). A row without tokens has mean 0."""
    lengths = row_sums(torch.ones_like(values), row, rows)
    return row_sums(values, row, rows) / lengths.clamp(min=1.0)


def importance_ratio(logprobs: Tensor, old: Tensor, row: Tensor, rows: int, *, sequence: bool) -> Tensor:
    """How much likelier the model is to sample a token than the sampler was, (N,), with gradient.

    token: exp(log p - log p_old) (PPO, arXiv:1707.06347, eq. 6).
    sequence: every token of a row gets exp(mean of the row's log-ratios) (GSPO, arXiv:2507.18071, eq. 7).
    """
    log_ratio = logprobs - old
    if sequence:
        log_ratio = row_means(log_ratio, row, rows)[row]
    return log_ratio.clamp(max=LOG_RATIO_LIMIT).exp()


def sampler_correction(
    policy: Tensor, sampler: Tensor, row: Tensor, rows: int, *, cap: float, mask: bool, sequence: bool
) -> tuple[Tensor, Tensor]:
    """Weights (N,) that make up for a sampler which differs from the trainer, and which are beyond `cap`.

    policy, sampler: (N,) log-probs of the same tokens under the same weights, by the trainer and by whatever
    sampled. The weight is exp(policy - sampler), of a token or (sequence) the product over its row; beyond
    the cap it is the cap (truncated importance sampling, Ionides 2008) or, with `mask`, 0.
    """
    log_ratio = policy - sampler
    if sequence:
        log_ratio = row_sums(log_ratio, row, rows)[row]
    weight = log_ratio.clamp(max=LOG_RATIO_LIMIT).exp()
    beyond = weight > cap
    return (weight.masked_fill(beyond, 0.0) if mask else weight.clamp(max=cap)), beyond


def clipped_objective(
    ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, delta: float | None = None
) -> Tensor:
    """min(r·A, clip(r, 1 - clip_low, 1 + clip_high)·A), (N,): PPO's surrogate (arXiv:1707.06347, eq. 7).

    delta bounds the unclipped ratio, which for A < 0 has no upper bound (two-sided clipping, INTELLECT-2,
    arXiv:2505.07291, section 3.4).
    """
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    bounded = ratio if delta is None else ratio.clamp(max=delta)
    return torch.min(bounded * advantages, clipped * advantages)


def kl_k3(logprobs: Tensor, reference: Tensor) -> Tensor:
    """exp(d) - d - 1 with d = log p_ref - log p, (N,): unbiased and never negative (Schulman's k3)."""
    difference = (reference - logprobs).clamp(max=LOG_RATIO_LIMIT)
    return difference.exp() - difference - 1
