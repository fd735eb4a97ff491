"""Tiny random models of several architectures, and a counter of the tokens they are fed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 48
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen3": {"head_dim": 8},
    "mistral": {"sliding_window": 7},
    "gemma2": {
        "head_dim": 8,
        "sliding_window": 5,
        "attn_logit_softcapping": 3.0,
        "final_logit_softcapping": 4.0,
    },
}


def tiny(kind: str = "llama", *, dtype: torch.dtype = torch.float32, **changes: Any) -> PreTrainedModel:
    """Two layers, four heads, two key heads; weights large enough for peaked distributions."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(settings | SHAPES[kind] | changes))
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=dtype).eval()


@contextmanager
def counting(model: PreTrainedModel) -> Iterator[list[int]]:
    """Collects the number of ids in every call of the embedding layer."""
    fed: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _, ids, __: fed.append(ids[0].numel()))
    try:
        yield fed
    finally:
        hook.remove()


def trie_size(paths: Iterable[Sequence[int]]) -> int:
    """Distinct prefixes of all paths: the nodes of their trie, by brute force."""
    return len({tuple(path[: n + 1]) for path in paths for n in range(len(path))})


@torch.no_grad()
def full_logprobs(model: PreTrainedModel, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """log p(ids[i] | ids[:i]) for i ≥ 1 from one ordinary forward pass, (len(ids) - 1,)."""
    logits = model(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits / temperature, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
