"""GRPO and its relatives: a rollout is worth how much better it did than the others on the same task."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Self

import torch
from pydantic import Field, model_validator

from renshu.algorithms.advantages import Baseline, Scale, advantages, spread
from renshu.algorithms.losses import clipped_objective, importance_ratio, kl_k3, row_means
from renshu.algorithms.protocol import (
    Algorithm,
    Counts,
    Credit,
    LossInputs,
    LossOutput,
    Mean,
    Need,
    OptimiserConfig,
)
from renshu.errors import ConfigError, DataError
from renshu.types import Group, Row, Scored, Stop, Trajectory, row_of

CLIP = 0.2
CISPO_CLIP_HIGH = 4.0  # cap of the ratio at 5 (ScaleRL, arXiv:2510.13786)


class GrpoConfig(OptimiserConfig):
    """Settings of a GRPO stage.

    loss: how token losses are averaged.
        grpo: mean over rows of each row's token mean (arXiv:2402.03300).
        bnpo: mean over the tokens of the minibatch.
        dapo: sum over tokens / mean number of tokens of the batch's minibatches (arXiv:2503.14476).
        dr_grpo: sum over tokens / (rows × max_tokens), so that no row length is favoured (arXiv:2503.20783).
        cispo: as dapo; the capped ratio is a detached weight of log p (arXiv:2506.13585).
    """

    steps: int = Field(40, gt=0)
    tasks_per_step: int = Field(8, gt=0)
    group: int = Field(8, gt=0, description="rollouts of one task")
    loss: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo"] = "dapo"
    ratio: Literal["token", "sequence"] = "token"
    baseline: Baseline = "group"
    scale: Scale = "group"
    clip_low: float = Field(CLIP, gt=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float | None = Field(
        None, gt=0, description="… above 1 + clip_high; absent: clip_low; cispo: 4"
    )
    delta: float | None = Field(None, gt=1, description="upper bound of the unclipped ratio")
    beta: float = Field(0.0, ge=0, description="weight of the KL to the reference model")
    correct_kl: bool = Field(False, description="multiply the KL by the ratio: its unbiased gradient")
    entropy_bonus: float = Field(0.0, ge=0, description="weight of the mean entropy per token")
    iterations: int = Field(1, gt=0, description="passes over the rollouts of a step")
    minibatches: int = Field(1, gt=0, description="optimiser updates of one pass")
    mask_truncated: bool = Field(False, description="do not train on rollouts cut by the token budget")
    learning_rate: float = Field(1e-5, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.group < 2 and self.baseline != "none":
            raise ValueError(
                f"group: {self.group} with baseline: {self.baseline}: a rollout is compared with others of "
                "its task, so GRPO needs group >= 2 (or baseline: none)"
            )
        if self.tasks_per_step % self.minibatches:
            valid = [n for n in range(1, self.tasks_per_step + 1) if self.tasks_per_step % n == 0]
            raise ValueError(
                f"tasks_per_step: {self.tasks_per_step} does not split into minibatches: {self.minibatches}; "
                f"possible: {', '.join(map(str, valid))}"
            )
        if self.loss == "cispo" and (self.delta is not None or self.clip_low != CLIP):
            raise ValueError("loss: cispo has no clip_low or delta: only clip_high caps its ratio")
        if self.correct_kl and not self.beta:
            raise ValueError("correct_kl: true does nothing without beta > 0")
        return self

    @property
    def ratio_bound(self) -> float:
        """clip_high with its default filled in."""
        default = CISPO_CLIP_HIGH if self.loss == "cispo" else self.clip_low
        return default if self.clip_high is None else self.clip_high


def algorithm(config: GrpoConfig, *, temperature: float, max_tokens: int) -> Algorithm[Sequence[Group]]:
    """GRPO as data for the loop; its batches are groups.

    temperature, max_tokens: as sampled with. Raises ConfigError for greedy sampling: groups without spread.
    """
    if temperature <= 0:
        raise ConfigError(
            f"temperature: {temperature}: GRPO learns from differences; sample above 0, e.g. at 1.0"
        )
    needs: set[Need] = {"rollouts"}
    if config.beta:
        needs.add("reference")
    if config.entropy_bonus:
        needs.add("entropy")
    return Algorithm(
        name="grpo",
        config=config,
        needs=frozenset(needs),
        credit=lambda groups: credit(groups, config),
        loss=lambda inputs: loss(inputs, config),
        denominator=denominator(config, max_tokens),
        temperature=temperature,
        skip_zero=not config.beta and not config.entropy_bonus,
        iterations=config.iterations,
        minibatches=config.minibatches,
    )


def denominator(config: GrpoConfig, max_tokens: int) -> Callable[[Counts], float]:
    """What the sum of a minibatch's losses is divided by (see GrpoConfig)."""
    return {
        "grpo": lambda counts: counts.rows,
        "bnpo": lambda counts: counts.tokens,
        "dr_grpo": lambda counts: counts.rows * max_tokens,
        "dapo": lambda counts: counts.mean_tokens,
        "cispo": lambda counts: counts.mean_tokens,
    }[config.loss]


def loss(inputs: LossInputs, config: GrpoConfig) -> LossOutput:
    """-Σ objective(ratio, A) + beta·KL per token, minus entropy_bonus · the minibatch's mean entropy.

    The entropy enters as a token mean whatever the loss averages by, as in TRL.
    """
    assert inputs.old_logprobs is not None
    assert inputs.advantages is not None
    ratio = importance_ratio(
        inputs.logprobs, inputs.old_logprobs, inputs.row, inputs.rows, sequence=config.ratio == "sequence"
    )
    advantage = inputs.advantages
    high = config.ratio_bound
    if config.loss == "cispo":
        per_token = -ratio.clamp(max=1 + high).detach() * advantage * inputs.logprobs
    else:
        per_token = -clipped_objective(
            ratio, advantage, clip_low=config.clip_low, clip_high=high, delta=config.delta
        )
    clipped_high = (ratio > 1 + high) & (advantage > 0)
    clipped_low = (ratio < 1 - config.clip_low) & (advantage < 0) & (config.loss != "cispo")
    metrics = {"ratio": _mean(ratio), "clipped_high": _mean(clipped_high), "clipped_low": _mean(clipped_low)}
    if config.beta:
        assert inputs.reference_logprobs is not None
        kl = kl_k3(inputs.logprobs, inputs.reference_logprobs)
        metrics["kl"] = _mean(kl)
        per_token = per_token + config.beta * (kl * ratio if config.correct_kl else kl)
    total = row_means(per_token, inputs.row, inputs.rows).sum() if config.loss == "grpo" else per_token.sum()
    if config.entropy_bonus:
        assert inputs.entropy is not None
        metrics["entropy"] = _mean(inputs.entropy)
        total = total - config.entropy_bonus * inputs.entropy.sum() * (inputs.denominator / inputs.tokens)
    return LossOutput(total, metrics)


def _mean(values: torch.Tensor) -> Mean:
    return Mean(values.detach().cpu().double().sum().item(), len(values))


def credit(groups: Sequence[Group], config: GrpoConfig) -> Credit:
    """The rows of all scored rollouts with their advantages, and a count of all that was left out.

    Left out, of the loss and of its denominator: unscored rollouts, groups with fewer than two scored ones,
    rollouts cut by the token budget if `mask_truncated` (their rewards still enter the baseline), and paths
    without a sampled token. Raises DataError for a rollout without the sampler's log-probs.
    """
    rewards = [[_reward(trajectory) for trajectory in group.trajectories] for group in groups]
    worth = advantages(rewards, baseline=config.baseline, scale=config.scale)
    rows: list[Row] = []
    values: list[float] = []
    masked = 0
    for index, (group, group_worth) in enumerate(zip(groups, worth, strict=True)):
        for trajectory, value in zip(group.trajectories, group_worth, strict=True):
            if value is None:
                continue
            if config.mask_truncated and trajectory.stop is Stop.LENGTH:
                masked += 1
                continue
            trained = list(_rows(trajectory, str(index)))
            rows += trained
            values += [value] * len(trained)
    metrics = _reward_metrics(rewards, worth) | _length_metrics(rows, values) | {"masked": masked}
    warnings = []
    if masked and not rows:
        warnings.append(
            "100% of the rollouts were cut by the token budget and masked: nothing to learn from; "
            "raise sample.max_tokens"
        )
    return Credit(tuple(rows), tuple(values), metrics=metrics, warnings=tuple(warnings))


def _reward(trajectory: Trajectory) -> float | None:
    """The rollout's reward; None if it is unscored, or scored by something that is no number."""
    score = trajectory.score
    return score.value if isinstance(score, Scored) and math.isfinite(score.value) else None


def _rows(trajectory: Trajectory, group: str) -> Iterator[Row]:
    for path in trajectory.paths:
        row = row_of(path, group)
        if not any(row.trained):
            continue
        if row.logprobs is None:
            raise DataError(
                f"missing_logprobs: a rollout of task {trajectory.task.id!r} has sampled tokens without "
                "log-probs; sample with an engine that records them"
            )
        yield row


def _reward_metrics(
    rewards: Sequence[Sequence[float | None]], worth: Sequence[Sequence[float | None]]
) -> dict[str, float]:
    """Spread is judged within groups: a batch can look varied while no group has anything to compare.

    What the rollouts were like is told by `renshu.rollout.rollout_metrics`.
    """
    known = [[reward for reward in group if reward is not None] for group in rewards]
    compared = [group for group in known if len(group) > 1]
    return {
        "reward_spread": statistics.fmean(map(spread, compared)) if compared else math.nan,
        "groups_skipped": sum(all(value is None for value in group) for group in worth),
    }


def _length_metrics(rows: Sequence[Row], values: Sequence[float]) -> dict[str, float]:
    """Mean trained tokens of better and of worse rollouts: a growing gap is a length bias."""
    lengths = [sum(row.trained) for row in rows]
    better = [length for length, value in zip(lengths, values, strict=True) if value > 0]
    worse = [length for length, value in zip(lengths, values, strict=True) if value < 0]
    return {
        "tokens_better": statistics.fmean(better) if better else math.nan,
        "tokens_worse": statistics.fmean(worse) if worse else math.nan,
    }
