"""Log-probabilities and entropies of chosen tokens, without a second copy of the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 256  # rows of logits worked on at once: temporary memory is _ROWS × V numbers


def chosen_logprobs(
    logits: Tensor, index: Tensor, target: Tensor, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probs of chosen tokens under softmax(logits / temperature), and the entropies they were chosen at.

    logits: (M, V), of any float type; computed in float32 at least. temperature: > 0.
    index: the row of each chosen token, (N,), in any order, repetitions allowed. target: its id, (N,).
    Returns logprobs (N,) and entropies in nats (N,), or None unless asked for; both are differentiable. The
    forward pass keeps two numbers a row beside the logits; the backward pass makes their gradient, no more.
    """
    chosen: tuple[Tensor, Tensor] = _Chosen.apply(  # type: ignore[no-untyped-call]
        logits, index, target, temperature, entropy
    )
    return chosen[0], chosen[1] if entropy else None


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, index: Tensor, target: Tensor, temperature: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(logits.dtype, torch.float32)
        normaliser = logits.new_empty(len(logits), dtype=wide)
        entropies = logits.new_zeros(len(logits), dtype=wide)
        for start in range(0, len(logits), _ROWS):
            part = slice(start, start + _ROWS)
            scaled = logits[part].to(wide) / temperature
            normaliser[part] = scaled.logsumexp(dim=-1)
            if entropy:
                entropies[part] = torch.special.entr((scaled - normaliser[part, None]).exp()).sum(-1)
        ctx.save_for_backward(logits, index, target, normaliser, entropies)
        ctx.temperature, ctx.entropy = temperature, entropy
        return logits[index, target].to(wide) / temperature - normaliser[index], entropies[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, index, target, normaliser, entropies = ctx.saved_tensors
        by_logprob, by_entropy = (
            torch.zeros_like(normaliser).index_add_(0, index, gradient)[:, None] for gradient in gradients
        )
        gradient = torch.empty_like(logits)
        for start in range(0, len(logits), _ROWS):
            part = slice(start, start + _ROWS)
            share = (logits[part].to(normaliser.dtype) / ctx.temperature - normaliser[part, None]).exp()
            of_scaled = -by_logprob[part] * share  # the chosen token's own +1 is added below
            if ctx.entropy:  # dH/dz = -p (log p + H)
                of_scaled += by_entropy[part] * (torch.special.entr(share) - share * entropies[part, None])
            gradient[part] = of_scaled / ctx.temperature
        own = (gradients[0] / ctx.temperature).to(gradient.dtype)
        gradient.index_put_((index, target), own, accumulate=True)
        return gradient, None, None, None, None
