"""A DPO step on token trees and on padded rows: `OMP_NUM_THREADS=1 python bench/pair_step.py`. Prints JSON.

Pairs of 40 + 40 tokens behind 400, on a Llama of SmolLM2-135M's shape with random weights and a LoRA adapter;
a step is all of it: credit, the reference's pass, forward, backward, update. Once every pair has a prompt of
its own, once all pairs answer the same one. The layouts take turns and their medians are compared; the rate
is too small to move a weight, so that all steps must have the same loss and gradient. Exits with 1 if they
have not, or if the tree takes more than 0.6 of the time on pairs with prompts of their own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from engine_models import tokens
from renshu.algorithms import DpoConfig, dpo
from renshu.models import AdapterSettings
from renshu.models.adapters import adapter_off, add_adapter
from renshu.train import Trainer
from renshu.tree import token_logprobs
from renshu.tree.packing import Layout
from renshu.types import Pair, Row

PROMPT, ANSWER = 400, 40
LIMIT = 0.6
LAYOUTS: tuple[Layout, Layout] = ("tree", "padded")


def smollm(layers: int) -> Any:
    """The shape of SmolLM2-135M; the adapter's second matrices are not zero, or every loss were log 2."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=layers,
        num_attention_heads=9,
        num_key_value_heads=3,
        tie_word_embeddings=True,
    )
    model = add_adapter(LlamaForCausalLM(config).eval(), AdapterSettings())
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return model


def draw_pairs(count: int, *, one_prompt: bool) -> list[Pair]:
    def row(prompt: int, answer: int) -> Row:
        ids = (*tokens(prompt, PROMPT), *tokens(answer, ANSWER))
        return Row(ids, (False,) * PROMPT + (True,) * ANSWER)

    prompts = [0 if one_prompt else number for number in range(count)]
    return [Pair(row(p, 1000 + 2 * n), row(p, 1001 + 2 * n)) for n, p in enumerate(prompts)]


def trainer_of(model: Any, layout: Layout, budget: int) -> Trainer[Sequence[Pair]]:
    """Both passes of a step, the reference's and the policy's, in one layout."""

    @torch.no_grad()
    def reference(rows: Sequence[Row], temperature: float) -> Tensor:
        with adapter_off(model):
            return token_logprobs(model, rows, temperature=temperature, layout=layout).logprobs

    config = DpoConfig(data="-", learning_rate=1e-20, token_budget=budget)
    trainer = Trainer(model, dpo.algorithm(config), steps=1, reference=reference)
    trainer.layout = layout
    return trainer


def compare(model: Any, pairs: Sequence[Pair], repeats: int, budget: int) -> dict[str, Any]:
    """Seconds of each layout's step, the layouts in turn after one step of each for warming up."""
    trainers = {layout: trainer_of(model, layout, budget) for layout in LAYOUTS}
    seconds: dict[str, list[float]] = {layout: [] for layout in LAYOUTS}
    told: dict[str, dict[str, float]] = {}
    for turn in range(repeats + 1):
        for layout, trainer in trainers.items():
            before = time.process_time()
            told[layout], _ = trainer.step(0, pairs)
            if turn:
                seconds[layout].append(time.process_time() - before)
    medians = {layout: statistics.median(times) for layout, times in seconds.items()}
    kept = ("loss", "gradient_norm", "tokens_computed")
    return {
        **{layout: {"seconds": seconds[layout], **{k: told[layout][k] for k in kept}} for layout in LAYOUTS},
        "ratio": medians["tree"] / medians["padded"],
        "ratio_of_tokens": told["tree"]["tokens_computed"] / told["padded"]["tokens_computed"],
        "equal": all(
            abs(told["tree"][name] - told["padded"][name]) < 1e-4 * max(1.0, told["padded"][name])
            for name in ("loss", "gradient_norm")
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=2)
    parser.add_argument("--layers", type=int, default=30, help="30: all of them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=int, default=900, help="tokens of one forward pass: one padded pair")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = smollm(options.layers)
    found = {
        name: compare(
            model, draw_pairs(options.pairs, one_prompt=name == "one prompt"), options.repeats, options.budget
        )
        for name in ("own prompts", "one prompt")
    }
    print(json.dumps({**vars(options), "prompt": PROMPT, "answer": ANSWER, **found}, indent=2))
    if found["own prompts"]["ratio"] > LIMIT or not all(result["equal"] for result in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
