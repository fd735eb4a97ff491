"""LoRA adapters on top of a frozen model."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from renshu.errors import ModelError
from renshu.models.settings import AdapterSettings


def add_adapter(model: nn.Module, settings: AdapterSettings) -> nn.Module:
    """The model with a fresh, trainable LoRA adapter; everything else is frozen.

    A fresh adapter changes nothing: its second matrix is zero. Raises ModelError if no layer has such a name.
    """
    from peft import LoraConfig, get_peft_model

    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    try:
        adapted: nn.Module = get_peft_model(model, config)
    except ValueError as error:
        raise ModelError(f"model.adapter.targets={targets}: {error}") from None
    return adapted


def has_adapter(model: Any) -> bool:
    return hasattr(model, "peft_config")


def adapter_off(model: Any) -> AbstractContextManager[Any]:
    """While open, the model computes what it did before its adapter was trained."""
    disabled: AbstractContextManager[Any] = model.disable_adapter() if has_adapter(model) else nullcontext()
    return disabled
