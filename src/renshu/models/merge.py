"""Writing an adapter into the weights below it, and proof that what was trained is still there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from renshu.errors import ModelError
from renshu.models import quantised
from renshu.models.adapters import adapter_off, has_adapter

LAST = 32  # tokens of a probe that are looked at: a vocabulary is large
LOST = 0.1  # of the adapter's effect may get lost by rounding
NOTHING = 1e-5  # nats a token: below, the adapter has no effect that could get lost


@dataclass(frozen=True)
class Merged:
    """The plain model in float32, and what it says about probes.

    merged, without, loaded: log-probs (tokens, vocabulary) of the merged model, of the model before it was
    trained, both in float32, and of the model as it was loaded.
    """

    model: Any
    merged: Tensor
    without: Tensor
    loaded: Tensor


def merge(model: Any, probes: Sequence[Sequence[int]]) -> Merged:
    """The plain model that computes what `model` computes with its adapter; `model` is used up.

    Four-bit weights are first made float32 ones of the same values; the adapter's product is then added in
    float32, and never rounded to their grid. probes: token ids of prompts; on these, log-probs before and
    after are compared. Raises ModelError if there is no adapter, if more than a tenth of what it changes
    would be lost, or for other kinds of quantised weights.
    """
    if not has_adapter(model):
        raise ModelError("there is no adapter to merge: the model is whole")
    loaded = logprobs_on(model, probes)
    if quantised.layers(model):
        model = _dequantised(model)
    elif getattr(model.get_base_model(), "is_quantized", False):
        raise ModelError(
            "the weights below the adapter are quantised, and merging would round the training away: "
            "put the model they were made from in their place"
        )
    model = model.float()
    with adapter_off(model):
        without = logprobs_on(model, probes)
    before = logprobs_on(model, probes)
    whole = model.merge_and_unload(safe_merge=True)
    after = logprobs_on(whole, probes)
    require_same(after, before, without)
    return Merged(whole, after, without, loaded)


def unmerged(model: Any, before: Any, probes: Sequence[Sequence[int]]) -> Merged:
    """What `merge` gives, of a model without an adapter. before: the model that it was trained from."""
    loaded = logprobs_on(model, probes)
    model = model.float()
    return Merged(model, logprobs_on(model, probes), logprobs_on(before.float(), probes), loaded)


def _dequantised(model: Any) -> Any:
    """The adapter of a model in four bits on float32 weights of the same values."""
    from peft import get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict

    config = copy.deepcopy(model.peft_config["default"])
    weights = {name: weight.clone() for name, weight in get_peft_model_state_dict(model).items()}
    base = model.unload()
    quantised.dequantise(base)
    adapted = get_peft_model(base.float(), config)
    set_peft_model_state_dict(adapted, weights)
    return adapted


def require_same(merged: Tensor, before: Tensor, without: Tensor) -> None:
    """Raise ModelError if merging, or writing in another type, lost more than a tenth of what was trained.

    merged, before, without: (tokens, vocabulary) log-probs of the model as it was written, as it was trained
    and before it was trained (with its adapter off).
    """
    effect = (before - without).abs().mean().item()
    gap = (merged - before).abs().mean().item()
    if not gap <= max(LOST * effect, NOTHING):
        raise ModelError(
            f"merging would lose what was trained: log-probs move by {gap:.2g} nats on average, "
            f"training moved them by {effect:.2g}; merge in a wider type: --dtype float32"
        )


@torch.no_grad()
def logprobs_on(model: Any, probes: Sequence[Sequence[int]]) -> Tensor:
    """Log-probs (tokens, vocabulary) after the last tokens of every probe, on the CPU."""
    device = next(model.parameters()).device
    model.eval()
    rows = [
        model(input_ids=torch.tensor([list(ids)], device=device), logits_to_keep=LAST).logits[0]
        for ids in probes
    ]
    return torch.cat(rows).float().log_softmax(-1).cpu()
