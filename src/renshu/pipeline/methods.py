"""From a stage to what the loop plays: one small builder an algorithm, all in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renshu.algorithms import Algorithm, grpo, sft
from renshu.models.critic import Critic
from renshu.pipeline.practice import rollouts
from renshu.pipeline.recipe import Stage
from renshu.pipeline.stand import Stand
from renshu.train import SftBatches


@dataclass(frozen=True)
class Method:
    """What the loop plays. source: step → its batch: rows, pairs, thumbs or groups. critic: of values."""

    algorithm: Algorithm[Any]
    source: Callable[[int], Sequence[Any]]
    steps: int
    critic: Critic | None = None


def method_of(stand: Stand, stage: Stage, items: Sequence[Any]) -> Method:
    """How a stage is played. items: what it learns from, where it does not sample."""
    return METHODS[stage.algorithm](stand, stage, items)


def _sft(stand: Stand, stage: Stage, items: Sequence[Any]) -> Method:
    assert stage.sft is not None
    batches = SftBatches(items, stage.sft, seed=stand.seed_of(stage))
    return Method(sft.algorithm(stage.sft), batches, batches.steps)


def _grpo(stand: Stand, stage: Stage, items: Sequence[Any]) -> Method:
    assert stage.grpo is not None
    config, sample = stage.grpo, stage.sample
    source = rollouts(
        stand,
        stage,
        config,
        further=config.dynamic_sampling,
        enough=lambda groups: grpo.enough(groups, config),
    )
    algorithm = grpo.algorithm(config, temperature=sample.temperature, max_tokens=sample.max_tokens)
    return Method(algorithm, source, config.steps)


METHODS: Mapping[str, Callable[[Stand, Stage, Sequence[Any]], Method]] = {"sft": _sft, "grpo": _grpo}
