"""What the tests of DPO and KTO share: rows, models, steps of the loop."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.algorithms import Algorithm
from renshu.models import AdapterSettings
from renshu.models.adapters import add_adapter
from renshu.models.reference import reference_of
from renshu.train import Snapshot, Trainer, checkpoint, train
from renshu.tree import token_logprobs
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
    """Metrics and gradients of one step of the loop; `STILL` is a rate that moves no weight."""
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


def tiny(vocabulary: int = 64) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def margin_of(model: Any, pairs: Sequence[Pair]) -> float:
    """How much likelier the chosen answers are than the rejected ones, in nats a pair."""

    def logps(rows: Sequence[Row]) -> float:
        return sum(token_logprobs(model, [row]).logprobs.sum().item() for row in rows)

    difference = logps([pair.chosen for pair in pairs]) - logps([pair.rejected for pair in pairs])
    return difference / len(pairs)


def assert_resumes(algorithm: Algorithm[Any], source: Callable[[int], Any], folder: Path) -> None:
    """Six steps of an adapter equal three, a checkpoint, and three more of a fresh one: bit for bit."""

    def begun() -> tuple[Any, Trainer[Any]]:
        torch.manual_seed(1)
        model = add_adapter(tiny(), AdapterSettings(rank=2))
        return model, Trainer(model, algorithm, steps=6, reference=reference_of(model))

    def weights(trainer: Trainer[Any]) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in trainer.trained.values()])

    seen: list[dict[str, float]] = []
    straight, first, second = begun()[1], begun()[1], begun()[1]

    def note(snapshot: Snapshot) -> None:
        seen.append({k: v for k, v in snapshot.metrics.items() if not k.startswith("seconds")})

    def save_and_stop(snapshot: Snapshot) -> str | None:
        if snapshot.step < 3:
            return None
        checkpoint.save(folder, snapshot.step, first.trained, first.optimiser, {})
        return "interrupted"

    train(straight, source, [note])
    assert train(first, source, [save_and_stop]) == "interrupted"
    path = checkpoint.latest(folder).path
    assert path is not None
    state = checkpoint.load(path, second.trained, second.optimiser)
    undisturbed = seen[3:]
    seen.clear()
    train(second, source, [note], start=state["step"])
    assert seen == undisturbed
    assert torch.equal(weights(straight), weights(second))
    assert not torch.equal(weights(straight), weights(begun()[1]))
