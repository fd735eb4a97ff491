"""LoRA adapters on top of a frozen model."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
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


def load_adapter(model: nn.Module, folder: str) -> nn.Module:
    """The model with the trained adapter of a folder, which can be trained further.

    Raises ModelError if the folder holds no whole adapter in safetensors, or one for another model.
    """
    from peft import PeftModel, get_peft_model_state_dict

    path = Path(folder) / "adapter_model.safetensors"
    if not path.is_file():
        raise ModelError(f"{folder} holds no adapter_model.safetensors (pickled weights are not read)")
    try:
        names = load_file(path).keys()
        adapted: nn.Module = PeftModel.from_pretrained(model, folder, is_trainable=True)
    except Exception as error:  # damaged files, settings that peft refuses, other shapes
        short = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(f"the adapter in {folder} does not fit the model or is damaged: {short}") from error
    odd = sorted(names ^ get_peft_model_state_dict(adapted).keys())
    if odd:
        raise ModelError(
            f"the adapter in {folder} is of another model: {len(odd)} names differ, e.g. {odd[0]}"
        )
    return adapted


def fingerprint(model: nn.Module) -> str:
    """A hash of the model below its adapter: names, shapes and the first values of all weights.

    The same whether loaded in float32 or bfloat16; "" in float16, which rounds otherwise.
    """
    digest = hashlib.sha256()
    weights = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): parameter
        for name, parameter in model.named_parameters()
        if "lora_" not in name
    }
    for name, parameter in sorted(weights.items()):
        if parameter.dtype == torch.float16:
            return ""
        first = parameter.detach().flatten()[:16].to(torch.bfloat16).float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} {first.tolist()}\n".encode())
    return digest.hexdigest()


def has_adapter(model: Any) -> bool:
    return hasattr(model, "peft_config")


def adapter_off(model: Any) -> AbstractContextManager[Any]:
    """While open, the model computes what it did before its adapter was trained."""
    disabled: AbstractContextManager[Any] = model.disable_adapter() if has_adapter(model) else nullcontext()
    return disabled
