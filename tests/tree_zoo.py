"""Tiny random models of many architectures, rows that share prefixes, and how far two layouts are apart."""

from __future__ import annotations

import random
from typing import Any

import torch
import transformers
from torch import Tensor

from renshu.tree import token_logprobs
from renshu.types import Row

SMALL: dict[str, Any] = {
    "vocab_size": 67,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = {"sliding_window": 5}  # far smaller than the rows
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 5}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

TREE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen2": ("Qwen2Config", {}),
    "qwen2-sliding": ("Qwen2Config", {"use_sliding_window": True, "max_window_layers": 1, **WINDOW}),
    "qwen3": ("Qwen3Config", {"head_dim": 8}),
    "gemma": ("GemmaConfig", {"head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2Config", {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3TextConfig", {**GEMMA, "num_hidden_layers": 6}),  # five sliding layers, then a full one
    "mistral": ("MistralConfig", WINDOW),
    "phi": ("PhiConfig", {}),
    "phi3": ("Phi3Config", WINDOW),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 4}),  # every fourth layer has no positions
    "olmo2": ("Olmo2Config", {}),
    "granite": ("GraniteConfig", {"attention_multiplier": 0.3, "logits_scaling": 2.0}),
    "gpt-neox": ("GPTNeoXConfig", {"num_key_value_heads": None}),
}
PADDED: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", {}),  # recurrent
    "qwen3.5": ("Qwen3_5TextConfig", {"head_dim": 8}),  # recurrent and attending
    "gpt-oss": ("GptOssConfig", {"head_dim": 8, **EXPERTS}),  # attention sinks
    "llama4": ("Llama4TextConfig", {"attention_chunk_size": 4, **EXPERTS}),  # chunked attention
}


def build(name: str, dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    """A model whose weights are large enough for attention to matter."""
    kind, settings = {**TREE, **PADDED}[name]
    values = {k: v for k, v in {**SMALL, **settings, **changes}.items() if v is not None}
    config = getattr(transformers, kind)(**values)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data *= 5
    return model


def random_rows(seed: int = 0, count: int = 14, longest: int = 36) -> list[Row]:
    """Rows that part at random depths, a repeated row and a row that is the start of another among them."""
    rng = random.Random(seed)
    start = [rng.randrange(3, 60) for _ in range(10)]
    rows = []
    for _ in range(count):
        ids = start[: rng.choice((4, 10, 10, 10))]
        while len(ids) < longest - rng.randrange(12):
            ids.append(rng.choice((3, 4)) if rng.random() < 0.6 else rng.randrange(3, 60))
        trained = tuple(at > 2 and rng.random() < 0.6 for at in range(len(ids)))
        rows.append(Row(tuple(ids), trained))
    first = rows[0]
    return [*rows, first, Row(first.ids[:15], (False, *(True,) * 14))]


def gradient(model: Any, rows: list[Row], layout: Any, entropy: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probs (N,), and the gradient of a fixed weighted sum of them (and of the entropies), flat."""
    model.zero_grad()
    found = token_logprobs(model, rows, layout=layout, temperature=0.7, entropy=entropy)
    weights = torch.cos(torch.arange(len(found.logprobs), dtype=found.logprobs.dtype))
    total = found.logprobs @ weights
    if found.entropy is not None:
        total = total + found.entropy @ weights.flip(0)
    total.backward()  # type: ignore[no-untyped-call]
    gradients = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return found.logprobs.detach(), torch.cat(gradients)


def distance(a: Tensor, b: Tensor) -> float:
    """Norm of the difference, relative to the norm of `b`."""
    return float((a - b).norm() / b.norm())
