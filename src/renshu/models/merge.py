"""Writing an adapter into the weights below it, and proof that what was trained is still there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from renshu.errors import ModelError
from renshu.models.adapters import adapter_off, has_adapter

LOST = 0.1  # of the adapter's effect may get lost by rounding
NOTHING = 1e-5  # nats a token: below, the adapter has no effect that could get lost


def merge(model: Any, probes: Sequence[Sequence[int]]) -> Any:
    """The plain model that computes what `model` computes with its adapter; `model` is used up.

    probes: token ids of prompts; on these, log-probs before and after are compared. Raises ModelError if
    there is no adapter, or if more than a tenth of what it changes would be lost; also for weights in 4 or
    8 bits, whose grid is coarser than what an adapter adds.
    """
    if not has_adapter(model):
        raise ModelError("there is no adapter to merge: the model is whole")
    if getattr(model.get_base_model(), "is_quantized", False):
        raise ModelError(
            "the weights below the adapter are quantised, and merging would round the training away: "
            "put the model they were made from in their place"
        )
    with adapter_off(model):
        without = _logprobs(model, probes)
    before = _logprobs(model, probes)
    whole = model.merge_and_unload(safe_merge=True)
    require_same(_logprobs(whole, probes), before, without)
    return whole


def require_same(merged: Tensor, before: Tensor, without: Tensor) -> None:
    """Raise ModelError if merging lost more than a tenth of what the adapter changes.

    merged, before, without: (tokens, vocabulary) log-probs of the merged model, of the model with its adapter
    and with the adapter off.
    """
    effect = (before - without).abs().mean().item()
    gap = (merged - before).abs().mean().item()
    if not gap <= max(LOST * effect, NOTHING):
        raise ModelError(
            f"merging would lose what was trained: log-probs move by {gap:.2g} nats on average, "
            f"the adapter moves them by {effect:.2g}; merge in a wider type: --dtype float32"
        )


@torch.no_grad()
def _logprobs(model: Any, probes: Sequence[Sequence[int]]) -> Tensor:
    device = next(model.parameters()).device
    model.eval()
    rows = [model(input_ids=torch.tensor([list(ids)], device=device)).logits[0] for ids in probes]
    return torch.cat(rows).float().log_softmax(-1)
