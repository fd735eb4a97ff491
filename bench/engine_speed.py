"""Tokens per second of 64 rows behind one shared prompt: the native engine and transformers' `generate`.

Prints JSON. `seconds` is processor time, which other work on the machine disturbs less than the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from engine_models import PROMPT, llama, tokens
from renshu.engines import Sampling
from renshu.engines.native import NativeEngine


def native(model: Any, prompt: list[int], rows: int, length: int) -> int:
    engine = NativeEngine(model)
    group = engine.open(prompt, seed=0).fork(range(rows))
    turns = engine.run([session.generate(Sampling(max_tokens=length)) for session in group])
    return sum(len(turn.segment.ids) for turn in turns)


def generate(model: Any, prompt: list[int], rows: int, length: int) -> int:
    ids = torch.tensor([prompt]).repeat(rows, 1)
    with torch.inference_mode():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=length,
            min_new_tokens=length,
            pad_token_id=0,
        )
    return int(output[:, len(prompt) :].numel())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=75)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    prompt, model, results = tokens(1, PROMPT), llama(), {}
    # In this order: the native engine switches the model to another attention.
    for name, run in (("generate", generate), ("native", native)):
        times = []
        for _ in range(options.repeats):
            before = time.process_time()
            sampled = run(model, prompt, options.rows, options.length)
            times.append(time.process_time() - before)
        results[name] = {"seconds": round(min(times), 2), "tokens_per_second": round(sampled / min(times))}
    ratio = results["native"]["tokens_per_second"] / results["generate"]["tokens_per_second"]
    print(json.dumps({**vars(options), "prompt": PROMPT, **results, "ratio": round(ratio, 1)}))


if __name__ == "__main__":
    main()
