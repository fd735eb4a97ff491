"""Choosing tokens: temperature and filters on all rows at once, one uniform number per row and token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from renshu.engines.protocol import Sampling


def sample(logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> tuple[Tensor, Tensor]:
    """One token per row.

    logits: (B, vocab). samplings: B. uniforms: B numbers in [0, 1), one draw of each row's private stream.
    Returns tokens (B,) and their log-probs (B,): temperature-scaled (greedy rows: temperature 1) and never
    truncated by the filters, which is what the trainer computes from the same logits.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    temperatures = _column([s.temperature or 1.0 for s in samplings], logits)
    logprobs = torch.log_softmax(logits / temperatures, dim=-1)
    greedy = [s.temperature == 0 for s in samplings]
    if all(greedy):
        tokens = logprobs.argmax(dim=-1)
    else:
        tokens = _draw(logprobs, samplings, uniforms)
        if any(greedy):
            tokens = torch.where(torch.tensor(greedy, device=logits.device), logprobs.argmax(dim=-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _draw(logprobs: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> Tensor:
    """Invert the cumulative distribution, in float64 so that rounding favours no token. Returns (B,).

    The sum always runs in the order of ids: what a row draws does not depend on the filters of the others.
    """
    probs = (
        (logprobs.cpu() if logprobs.device.type == "mps" else logprobs).double().exp()
    )  # mps has no float64
    if any(s.top_k or s.top_p < 1 or s.min_p for s in samplings):
        descending, order = probs.sort(dim=-1, descending=True, stable=True)
        keep = kept(descending, samplings)
        probs = probs * torch.empty_like(keep).scatter_(1, order, keep)
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[:, -1:]
    point = torch.minimum(_column(uniforms, cumulative) * total, torch.nextafter(total, -total))
    tokens = torch.searchsorted(cumulative, point, right=True)  # the first token whose sum exceeds the point
    tokens = tokens.clamp_(max=probs.shape[-1] - 1)[:, 0]  # reached by NaN only, which the caller reports
    return tokens.to(logprobs.device)


def kept(probs: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Which tokens the filters keep, in the order top-k, top-p (of what top-k left), min-p.

    probs: (B, vocab), sorted in descending order. Returns a mask of that shape; the first token is always
    kept. top-p keeps the smallest set of tokens that reaches p, min-p those with at least min_p times the
    probability of the best.
    """
    rank = torch.arange(probs.shape[-1], device=probs.device)
    top_k = _column([s.top_k or probs.shape[-1] for s in samplings], rank)
    keep = rank < top_k
    left = probs * keep
    cumulative = left.cumsum(dim=-1)
    top_p = _column([s.top_p for s in samplings], probs)
    keep &= (cumulative - left < top_p * cumulative[:, -1:]) | (top_p >= 1)
    keep &= probs >= _column([s.min_p for s in samplings], probs) * probs[:, :1]
    return keep


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None]
