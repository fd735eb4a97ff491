"""What the tests of DPO and KTO share: rows, and one step of the loop whose rate moves no weight."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from renshu.algorithms import Algorithm
from renshu.models.reference import reference_of
from renshu.train import Trainer
from renshu.types import Pair, Row, Scored, Segment, Stop, Task, Trajectory, Unscored
from trl_oracle import tiny_model

STILL: dict[str, Any] = {"learning_rate": 1e-20, "max_gradient_norm": 1e9}


def two_models(folder: Path) -> tuple[Any, Any, Any]:
    """A policy, a reference that differs from it, their tokenizer."""
    model, tokenizer = tiny_model(folder)
    reference = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.03)
    return model, reference, tokenizer


def one_step(
    model: Any, reference: Any, algorithm: Algorithm[Any], batch: Any
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Metrics and gradients of one step of the loop."""
    model = copy.deepcopy(model)
    trainer = Trainer(model, algorithm, steps=1, reference=reference_of(reference))
    metrics, _ = trainer.step(0, batch)
    return metrics, {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def answer(dice: random.Random, prompt: Sequence[int], *, tool: bool = False, longest: int = 7) -> Row:
    """A sampled turn of 2 to `longest` tokens behind a prompt; with `tool`, a tool's answer and a turn."""
    turn = [dice.randrange(250) for _ in range(dice.randrange(2, longest + 1))]
    ids, trained = [*prompt, *turn], [False] * len(prompt) + [True] * len(turn)
    if tool:
        ids += [dice.randrange(250) for _ in range(5)]
        trained += [False, False, False, True, True]
    return Row(tuple(ids), tuple(trained))


def draw_pairs(count: int, *, tool: bool = False) -> list[Pair]:
    """Pairs behind prompts of 3 to 8 tokens; both sides of unequal length, the rejected ones with a tool."""
    dice = random.Random(11)
    pairs = []
    for _ in range(count):
        prompt = [dice.randrange(250) for _ in range(dice.randrange(3, 9))]
        pairs.append(Pair(answer(dice, prompt, longest=4), answer(dice, prompt, tool=tool)))
    return pairs


def rollout(ids: Sequence[int], score: Scored | Unscored, *, forks: Any = ()) -> Trajectory:
    """The prompt 1 2 3, then `ids`, sampled."""
    logprobs = tuple(-1.0 for _ in ids)
    path = (Segment((1, 2, 3)), Segment(tuple(ids), True, logprobs))
    return Trajectory(Task("toy/0"), path, (), Stop.ANSWERED, score, forks=forks)
