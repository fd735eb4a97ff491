"""Low-rank adapters on top of a frozen model."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from renshu.errors import ModelError
from renshu.models import quantised
from renshu.models.settings import AdapterSettings


def add_adapter(model: nn.Module, settings: AdapterSettings) -> nn.Module:
    """The model with a fresh, trainable adapter; everything else is frozen.

    A fresh adapter changes nothing: its second matrix is zero. Raises ModelError if no layer has such a name.
    For `qlora`, the model has four-bit weights already.
    """
    from peft import LoraConfig, get_peft_model

    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        use_rslora=settings.kind == "rslora",
        use_dora=settings.kind == "dora",
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

    The same whether loaded in float32 or bfloat16, or in four bits of either; "" in float16, which rounds
    otherwise, and where it is not known what four-bit weights were made from.
    """
    digest = hashlib.sha256()
    base: Any = model.get_base_model() if has_adapter(model) else model  # type: ignore[operator]
    weights = {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in base.named_parameters()
        if "lora_" not in name
    }
    packed = {f"{name}.weight".replace(".base_layer.", ".") for name in quantised.layers(base)}
    for name, parameter in sorted(weights.items()):
        if name in packed and name not in getattr(base, "first_values", {}):
            return ""
        shape, values = base.first_values[name] if name in packed else (tuple(parameter.shape), parameter)
        if values.dtype == torch.float16:
            return ""
        first = values.detach().flatten()[: quantised.FIRST].to(torch.bfloat16).float().cpu()
        digest.update(f"{name} {shape} {first.tolist()}\n".encode())
    return digest.hexdigest()


def has_adapter(model: Any) -> bool:
    return hasattr(model, "peft_config")


def adapter_off(model: Any) -> AbstractContextManager[Any]:
    """While open, the model computes what it did before its adapter was trained."""
    disabled: AbstractContextManager[Any] = model.disable_adapter() if has_adapter(model) else nullcontext()
    return disabled
