"""Weights in four bits (NF4, doubly quantised: Dettmers et al. 2023, arXiv 2305.14314), and back.

Only linear layers other than the head are quantised. Norms, embeddings and the head keep `model.dtype`, in
which products are computed too. PEFT's `prepare_model_for_kbit_training` is not used: it turns norms,
embeddings and head into float32, and with them every activation, keys and values included, for nothing:
transformers computes norms in float32 whatever their type, adapters are in float32 anyway, and checkpointing
that is not reentrant needs no gradient at the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from renshu.errors import ModelError

FIRST = 16  # values of a weight that go into a fingerprint
NF4 = "nf4"  # what a saved adapter says of the weights it was trained on


def four_bit(compute: torch.dtype) -> Any:
    """What transformers is told. compute: the type of products. Raises ModelError without bitsandbytes."""
    if find_spec("bitsandbytes") is None:
        raise ModelError("weights in four bits need one more package: pip install 'renshu[bnb]'")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=NF4,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute,
    )


def settle(model: nn.Module, source: str) -> None:
    """Make a freshly quantised model the same for all who use it, and note what its weights were made from.

    On CPUs with AVX512-BF16, bitsandbytes repacks the weights at the first pass without a gradient, and
    computes in bfloat16 from then on. Sampler and trainer would disagree, gradients would stop, and
    dequantising would give other weights; so that is switched off. source: folder or hub name.
    """
    for layer in layers(model).values():
        layer.support_avx512bf16_for_cpu = False
    model.first_values = first_values(source, {f"{name}.weight" for name in layers(model)})  # type: ignore[assignment]


def layers(model: nn.Module) -> dict[str, Any]:
    """The four-bit layers of a model by name; none where nothing is quantised."""
    if find_spec("bitsandbytes") is None:
        return {}
    from bitsandbytes import nn as bits

    return {name: module for name, module in model.named_modules() if isinstance(module, bits.Linear4bit)}


def first_values(source: str, names: Iterable[str]) -> dict[str, tuple[tuple[int, ...], Tensor]]:
    """Shape and first values of weights as the checkpoint has them; only of those it has under such names."""
    from safetensors import safe_open

    found = {}
    wanted = set(names)
    for path in sorted(_folder(source).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in wanted & set(file.keys()):
                part = file.get_slice(name)
                found[name] = tuple(part.get_shape()), part[:FIRST].flatten()[:FIRST].clone()
    return found


def _folder(source: str) -> Path:
    """The folder of a checkpoint that was just loaded from `source`."""
    if Path(source).is_dir():
        return Path(source)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(source, local_files_only=True))


@torch.no_grad()
def dequantise(model: Any) -> None:
    """Replace the four-bit layers of a transformers model by float32 ones of the same values, in place."""
    from bitsandbytes.functional import dequantize_4bit

    for name, layer in layers(model).items():
        plain = nn.Linear(layer.in_features, layer.out_features, bias=False, device=layer.weight.device)
        plain.weight.copy_(dequantize_4bit(layer.weight.data, layer.weight.quant_state))
        plain.bias = layer.bias
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, plain.requires_grad_(False))
    model.is_quantized = model.is_loaded_in_4bit = False
    for owner, attribute in (
        (model, "hf_quantizer"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if hasattr(owner, attribute):
            delattr(owner, attribute)
