"""The reference model: what the policy was before it was trained, for the KL of RL stages."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from renshu.models.adapters import adapter_off, has_adapter
from renshu.tree import token_logprobs
from renshu.types import Row

Reference = Callable[[Sequence[Row], float], Tensor]


def reference_of(model: Any) -> Reference:
    """Rows, temperature → log-probs (N,) of their trained tokens under the model as it is now.

    The weights are copied and frozen. A model whose adapter was never trained needs no copy: its reference is
    the model with the adapter switched off.
    """
    if has_adapter(model) and _untrained(model):
        frozen, off = model, adapter_off
    else:
        frozen = copy.deepcopy(model).requires_grad_(False).eval()
        off = None

    @torch.no_grad()
    def logprobs(rows: Sequence[Row], temperature: float) -> Tensor:
        if off is None:
            return token_logprobs(frozen, rows, temperature=temperature).logprobs
        with off(frozen):
            return token_logprobs(frozen, rows, temperature=temperature).logprobs

    return logprobs


def _untrained(model: Any) -> bool:
    return all(not p.any() for name, p in model.named_parameters() if "lora_B" in name)
