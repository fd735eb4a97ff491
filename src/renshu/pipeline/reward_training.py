"""`renshu reward train` as a function: pairs of answers become a reward model, a folder of safetensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from renshu.algorithms import reward
from renshu.algorithms.reward import RewardConfig
from renshu.errors import ConfigError, TrainingError
from renshu.evaluation import wilson
from renshu.models import ModelSettings
from renshu.models.classifier import classifier_of, is_classifier, load_classifier, scores
from renshu.models.load import load
from renshu.models.reward import RewardReader, context_of
from renshu.pipeline.reward_pairs import RewardPair, read_reward_pairs
from renshu.places import require_writable
from renshu.seeding import generator
from renshu.train import Snapshot, optimiser
from renshu.train.checkpoint import atomic_folder

RECORD = "reward.json"  # beside the weights: how they came about


@dataclass(frozen=True)
class RewardTrained:
    """What came of it. right: held-out pairs in the right order of `held_out`; before: with the new head."""

    folder: Path
    pairs: int
    held_out: int
    right: int
    before: int
    set_aside: dict[str, int]

    @property
    def accuracy(self) -> tuple[float, float, float]:
        """Share of held-out pairs in the right order, with the ends of its 95 % Wilson interval."""
        found = wilson(self.right, self.held_out)
        return found.estimate, found.low, found.high


def train_reward_model(
    pairs: Path,
    settings: ModelSettings,
    config: RewardConfig,
    out: Path,
    *,
    seed: int = 0,
    observe: Callable[[int], Callable[[Snapshot], None]] | None = None,
) -> RewardTrained:
    """Train a reward model from the pairs of a file and write it to the new folder `out`, or nothing.

    settings: a causal model, whose layers get a new head, or a sequence classifier with one label, which is
    trained on. observe: given the number of steps, what is shown every step. The same seed gives the same
    weights on a CPU. Raises ConfigError if `out` exists, DataError if there is too little to train on,
    TrainingError if the loss is no number.
    """
    if out.exists():
        raise ConfigError(f"{out} exists: choose another folder with --out")
    require_writable(out, "--out")
    model, tokenizer = _start(settings, seed)
    template = None if settings.template == "own" else settings.template
    reader = RewardReader(tokenizer, min(config.max_length, context_of(model)), template)
    read = read_reward_pairs(pairs, reader)
    training, held_out = read.split(config.held_out, seed)
    before = _right(model, held_out, config)
    steps = math.ceil(config.epochs * len(training) / config.pairs_per_step)
    show = observe(steps) if observe is not None else None
    for snapshot in fit(model, training, config, seed=seed):
        if show is not None:
            show(snapshot)
    right = _right(model, held_out, config)
    trained = RewardTrained(out, len(training), len(held_out), right, before, dict(read.set_aside))
    if template is not None:
        tokenizer.chat_template = reader.chat.template.source
    record = {
        "model": settings.name,
        "seed": seed,
        "settings": config.model_dump(mode="json"),
        "pairs": trained.pairs,
        "held_out": {"pairs": trained.held_out, "right": right, "before": before},
        "set_aside": trained.set_aside,
    }
    with atomic_folder(out) as temporary:
        model.save_pretrained(temporary, safe_serialization=True)
        tokenizer.save_pretrained(temporary)
        (temporary / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return trained


def _start(settings: ModelSettings, seed: int) -> tuple[Any, Any]:
    """The classifier to begin with, and its tokenizer."""
    if is_classifier(settings.name):
        return load_classifier(settings.name, settings.device)
    loaded = load(settings.model_copy(update={"dtype": "float32"}))  # all weights are trained
    return classifier_of(loaded, seed), loaded.tokenizer


def fit(
    model: Any, pairs: Sequence[RewardPair], config: RewardConfig, *, seed: int = 0
) -> Iterator[Snapshot]:
    """Train a classifier on pairs, a `Snapshot` a step. Raises TrainingError if a gradient is not finite."""
    trained = optimiser.trainable(model)
    adamw = optimiser.build(trained, config)
    order = [index for epoch in range(config.epochs) for index in _order(len(pairs), seed, epoch)]
    size = config.pairs_per_step
    steps = math.ceil(len(order) / size)
    model.train()
    for step in range(steps):
        rate = optimiser.learning_rate(config, step, steps)
        optimiser.set_rate(adamw, rate)
        batch = [pairs[index] for index in order[step * size : (step + 1) * size]]
        metrics = backward(model, batch, config)
        norm = torch.nn.utils.clip_grad_norm_(list(trained.values()), config.max_gradient_norm).item()
        if not math.isfinite(norm):
            raise TrainingError(
                f"the gradient of step {step + 1} is not finite: lower learning_rate, and look for NaN in "
                "the weights"
            )
        adamw.step()
        metrics |= {"learning_rate": rate, "gradient_norm": norm}
        yield Snapshot(step + 1, steps, metrics, (), batch)
    model.eval()


def backward(model: Any, batch: Sequence[RewardPair], config: RewardConfig) -> dict[str, float]:
    """Put the gradient of a batch's mean loss in place, pass by pass; returns its metrics."""
    model.zero_grad()
    total = right = gap = 0.0
    for part in _passes(batch, config.token_budget):
        chosen, rejected = _scores(model, part)
        margins = torch.tensor([pair.margin for pair in part], device=chosen.device)
        loss = reward.loss(chosen, rejected, margins, centre=config.centre) / len(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
        right += (chosen > rejected).sum().item()
        gap += (chosen - rejected).sum().item()
    return {"loss": total, "accuracy": right / len(batch), "gap": gap / len(batch)}


@torch.no_grad()
def _right(model: Any, pairs: Sequence[RewardPair], config: RewardConfig) -> int:
    """How many pairs have the higher score where it belongs; equal scores are wrong."""
    found = [_scores(model, part) for part in _passes(pairs, config.token_budget)]
    return sum(int((chosen > rejected).sum()) for chosen, rejected in found)


def _scores(model: Any, pairs: Sequence[RewardPair]) -> tuple[Tensor, Tensor]:
    """Of the chosen and of the rejected, (P,) each, in one forward pass."""
    both = scores(model, [*(pair.chosen for pair in pairs), *(pair.rejected for pair in pairs)])
    return both[: len(pairs)], both[len(pairs) :]


def _passes(pairs: Sequence[RewardPair], budget: int) -> Iterator[list[RewardPair]]:
    """The pairs in order, as many in a forward pass as fit the budget of padded tokens; at least one."""
    part: list[RewardPair] = []
    longest = 0
    for pair in pairs:
        own = max(len(pair.chosen), len(pair.rejected))
        if part and 2 * (len(part) + 1) * max(longest, own) > budget:
            yield part
            part, longest = [], 0
        part.append(pair)
        longest = max(longest, own)
    if part:
        yield part


def _order(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    generator("reward", seed, "epoch", epoch).shuffle(order)
    return order
