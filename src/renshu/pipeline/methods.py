"""From a stage to what the loop plays: one small builder an algorithm, all in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renshu.algorithms import Algorithm, dpo, grpo, kto, ppo, sft
from renshu.models.critic import Critic
from renshu.pipeline.practice import rollouts
from renshu.pipeline.recipe import Stage
from renshu.pipeline.stand import Stand
from renshu.train import Batches


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
    config = stage.sft
    assert config is not None
    batches = Batches(items, per_step=config.rows_per_step, epochs=config.epochs, seed=stand.seed_of(stage))
    return Method(sft.algorithm(config), batches, batches.steps)


def _dpo(stand: Stand, stage: Stage, items: Sequence[Any]) -> Method:
    config = stage.dpo
    assert config is not None
    if stage.samples:
        return Method(dpo.practice(config), rollouts(stand, stage, config), config.steps)
    batches = Batches(items, per_step=config.pairs_per_step, epochs=config.epochs, seed=stand.seed_of(stage))
    return Method(dpo.algorithm(config), batches, batches.steps)


def _kto(stand: Stand, stage: Stage, items: Sequence[Any]) -> Method:
    config = stage.kto
    assert config is not None
    if stage.samples:
        return Method(kto.practice(config), rollouts(stand, stage, config), config.steps)
    batches = Batches(items, per_step=config.rows_per_step, epochs=config.epochs, seed=stand.seed_of(stage))
    return Method(kto.algorithm(config), batches, batches.steps)


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


def _ppo(stand: Stand, stage: Stage, items: Sequence[Any]) -> Method:
    config = stage.ppo
    assert config is not None
    return Method(
        ppo.algorithm(config, temperature=stage.sample.temperature),
        rollouts(stand, stage, config),
        config.steps,
        ppo.critic_of(stand.agent.loaded.model, config.value),
    )


METHODS: Mapping[str, Callable[[Stand, Stage, Sequence[Any]], Method]] = {
    "sft": _sft,
    "dpo": _dpo,
    "kto": _kto,
    "grpo": _grpo,
    "ppo": _ppo,
}
