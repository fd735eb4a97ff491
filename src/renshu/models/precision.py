"""In which types weights are kept and products computed, and what is kept for the gradient."""

from __future__ import annotations

from functools import wraps
from types import MethodType
from typing import Any

import torch

from renshu.errors import ModelError
from renshu.models.settings import ModelSettings


def weight_type(settings: ModelSettings, device: torch.device, *, adapted: bool) -> torch.dtype:
    """`auto`: half the memory on a GPU, but only where the weights below an adapter stay as they are."""
    if settings.dtype == "auto":
        halved = adapted and device.type != "cpu" and settings.autocast == "none"
        return torch.bfloat16 if halved else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[settings.dtype]


def autocast_type(settings: ModelSettings, device: torch.device) -> torch.dtype | None:
    """The type in which products are computed, None if that of the weights.

    There is no float16: its gradients vanish unless the loss is scaled.
    """
    if settings.autocast == "none":
        return None
    if settings.autocast == "bfloat16":
        return torch.bfloat16
    return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else None


def enable_autocast(model: Any, dtype: torch.dtype) -> None:
    """Compute every forward pass of a transformers model in mixed precision, whoever calls it.

    The one place where it is switched on: engine, trainer, reference and evaluation call the same method, so
    they cannot differ. It is bound to the model, so that a deep copy computes with its own weights.
    """
    plain = type(model).forward

    @wraps(plain)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self.device.type, dtype=dtype):
            return plain(self, *args, **kwargs)

    model.forward = MethodType(forward, model)


def enable_checkpointing(model: Any) -> None:
    """Let a transformers model keep only the inputs of its layers, and compute the rest again later.

    Chen et al. 2016, arXiv 1604.06174. Passes without a gradient, so also sampling and evaluation, are as
    before. It is not reentrant: gradients also reach adapters on a frozen model, whose inputs have none.
    Raises ModelError for models without it.
    """
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    try:
        enable({"use_reentrant": False})
    except ValueError as error:
        name = type(model).__name__
        raise ModelError(f"{name} has no checkpointing: set model.checkpointing=false ({error})") from None
