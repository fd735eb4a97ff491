"""How often float32 changes a sampled token when the width of the batch changes. Prints JSON.

Logits differ by about 1e-6 between widths, so a draw that falls that close to the border between two tokens
gives the other one; from there the two rollouts part. In float64 none is expected.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch

from engine_models import PROMPT, llama, tokens
from renshu.engines import Sampling
from renshu.engines.native import NativeEngine


def rollout(model: Any, sessions: int, width: int, length: int) -> list[list[int]]:
    """The ids that `sessions` sessions sample when `width` of them run at a time."""
    engine = NativeEngine(model)
    prompt = tokens(1, PROMPT)
    found = []
    for first in range(0, sessions, width):
        group = [engine.open(prompt, seed=seed) for seed in range(first, min(first + width, sessions))]
        turns = engine.run([session.generate(Sampling(max_tokens=length)) for session in group])
        found += [list(turn.segment.ids) for turn in turns]
        for session in group:
            session.close()
    return found


def compare(one: list[list[int]], other: list[list[int]]) -> dict[str, float]:
    """Rollouts that part, and the rate per sampled token up to the first difference."""
    parted, compared = 0, 0
    for left, right in zip(one, other, strict=True):
        same = next((n for n, pair in enumerate(zip(left, right, strict=True)) if pair[0] != pair[1]), None)
        parted += same is not None
        compared += len(left) if same is None else same + 1
    return {"parted": parted, "compared_tokens": compared, "rate_per_token": parted / compared}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 7])
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for dtype in (torch.float32, torch.float64):
        model = llama().to(dtype)
        whole = rollout(model, options.sessions, options.sessions, options.length)
        results[str(dtype).removeprefix("torch.")] = {
            width: compare(whole, rollout(model, options.sessions, width, options.length))
            for width in options.widths
        }
    print(json.dumps({**vars(options), **results}, default=list))


if __name__ == "__main__":
    main()
