"""The model of the engine benchmarks: a 0.9M Llama as small agents are made of, with random weights."""

from __future__ import annotations

import random
from typing import Any

import torch

VOCAB = 1500
PROMPT = 469  # tokens of a system prompt with tool schemas


def llama(layers: int = 4, width: int = 128) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        initializer_range=0.1,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


def tokens(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(VOCAB) for _ in range(count)]
