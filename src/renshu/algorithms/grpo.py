"""GRPO and its relatives: a rollout is worth how much better it did than the others on the same task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from renshu.algorithms.advantages import Baseline, Scale, advantages, turn_advantages
from renshu.algorithms.losses import (
    clipped_objective,
    importance_ratio,
    kl_k3,
    row_means,
    sampler_correction,
)
from renshu.algorithms.protocol import (
    CLIP,
    Algorithm,
    ClippedConfig,
    Counts,
    Credit,
    LossInputs,
    LossOutput,
    Mean,
    Need,
)
from renshu.algorithms.rollouts import length_metrics, reward_metrics, reward_of, rows_of, turns_of
from renshu.errors import ConfigError
from renshu.types import Group, Row, Stop

CISPO_CLIP_HIGH = 4.0  # cap of the ratio at 5 (ScaleRL, arXiv:2510.13786)
CAP = 3.0  # of the weights that correct the sampler, as in TRL


class GrpoConfig(ClippedConfig):
    """Settings of a GRPO stage.

    loss: how token losses are averaged.
        grpo: mean over rows of each row's token mean (arXiv:2402.03300).
        bnpo: mean over the tokens of the minibatch.
        dapo: sum over tokens / mean number of tokens of the batch's minibatches (arXiv:2503.14476).
        dr_grpo: sum over tokens / (rows × max_tokens), so that no row length is favoured (arXiv:2503.20783).
        cispo: as dapo; the capped ratio is a detached weight of log p (arXiv:2506.13585).
    credit: what a token is worth. outcome: how much better its rollout was. steps: how much better the rest
        of the rollout was besides the rewards of turns, plus what these say of its turn and the later ones.
    correction: of a sampler that computes other log-probs than the trainer (see `sampler_correction`); the
        clipped ratio is then to the trainer's own log-probs before the step's first update.
    """

    loss: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo"] = "dapo"
    ratio: Literal["token", "sequence"] = "token"
    baseline: Baseline = "group"
    scale: Scale = "group"
    credit: Literal["outcome", "steps"] = "outcome"
    dynamic_sampling: int = Field(0, ge=0, description="further rounds of rollouts until groups differ")
    correction: Literal["none", "truncate", "mask"] = "none"
    correction_level: Literal["token", "sequence"] = "token"
    correction_cap: float = Field(CAP, gt=0, description="the largest weight of the correction")
    clip_high: float | None = Field(
        None, gt=0, description="… above 1 + clip_high; absent: clip_low; cispo: 4"
    )
    delta: float | None = Field(None, gt=1, description="upper bound of the unclipped ratio")
    correct_kl: bool = Field(False, description="multiply the KL by the ratio: its unbiased gradient")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.group < 2 and self.baseline != "none":
            raise ValueError(
                f"group: {self.group} with baseline: {self.baseline}: a rollout is compared with others of "
                "its task, so GRPO needs group >= 2 (or baseline: none)"
            )
        if self.loss == "cispo" and (self.delta is not None or self.clip_low != CLIP):
            raise ValueError("loss: cispo has no clip_low or delta: only clip_high caps its ratio")
        if self.correction == "none" and (self.correction_level != "token" or self.correction_cap != CAP):
            raise ValueError("correction_level and correction_cap do nothing with correction: none")
        if self.delta is not None and self.delta <= 1 + self.ratio_bound:
            raise ValueError(
                f"delta: {self.delta} is within 1 + clip_high ({1 + self.ratio_bound:g}), so it would clip "
                "where the advantage is positive, too: take a larger one"
            )
        if self.correct_kl and not self.beta:
            raise ValueError("correct_kl: true does nothing without beta > 0")
        return self

    @property
    def ratio_bound(self) -> float:
        """clip_high with its default filled in."""
        if self.loss == "cispo" and self.clip_high is None:
            return CISPO_CLIP_HIGH
        return super().ratio_bound


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
    if config.correction != "none":
        needs.add("policy")
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
    old = inputs.old_logprobs if config.correction == "none" else inputs.policy_logprobs
    assert old is not None
    ratio = importance_ratio(
        inputs.logprobs, old, inputs.row, inputs.rows, sequence=config.ratio == "sequence"
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
    metrics = {
        "ratio": Mean.of(ratio),
        "clipped_high": Mean.of(clipped_high),
        "clipped_low": Mean.of(clipped_low),
    }
    if config.correction != "none":
        weight, beyond = sampler_correction(
            old,
            inputs.old_logprobs,
            inputs.row,
            inputs.rows,
            cap=config.correction_cap,
            mask=config.correction == "mask",
            sequence=config.correction_level == "sequence",
        )
        per_token = per_token * weight
        metrics |= {"correction": Mean.of(weight), "correction_beyond": Mean.of(beyond)}
    if config.beta:
        assert inputs.reference_logprobs is not None
        kl = kl_k3(inputs.logprobs, inputs.reference_logprobs)
        metrics["kl"] = Mean.of(kl)
        per_token = per_token + config.beta * (kl * ratio if config.correct_kl else kl)
    total = row_means(per_token, inputs.row, inputs.rows).sum() if config.loss == "grpo" else per_token.sum()
    if config.entropy_bonus:
        assert inputs.entropy is not None
        metrics["entropy"] = Mean.of(inputs.entropy)
        total = total - config.entropy_bonus * inputs.entropy.sum() * (inputs.denominator / inputs.tokens)
    return LossOutput(total, metrics)


def credit(groups: Sequence[Group], config: GrpoConfig) -> Credit:
    """The rows of all scored rollouts with their advantages, and a count of all that was left out.

    Left out, of the loss and of its denominator: unscored rollouts, groups with fewer than two scored ones,
    rollouts cut by the token budget if `mask_truncated` (their rewards still enter the baseline), and paths
    without a sampled token; with `dynamic_sampling` also groups that do not teach, and those that teach
    beyond the first `tasks_per_step`. Raises DataError for a rollout without the sampler's log-probs.
    """
    if not config.dynamic_sampling:
        return _credit(groups, config)
    taught = [group for group in groups if teaches(group, config)]
    chosen = _credit(taught[: config.tasks_per_step], config)
    left = [group for group in groups if not any(group is other for other in taught[: config.tasks_per_step])]
    metrics = {
        **chosen.metrics,
        "sampling_rounds": math.ceil(len(groups) / config.tasks_per_step),
        "groups_skipped": len(groups) - len(taught),
        "groups_surplus": max(0, len(taught) - config.tasks_per_step),
        "tokens_left_out": sum(t.sampled_tokens for group in left for t in group.trajectories),
    }
    warnings = list(chosen.warnings)
    if not taught:
        warnings.append(
            f"none of {len(groups)} groups has rewards that differ: nothing to learn from; "
            "take easier or harder tasks, or a warm-up"
        )
    return replace(chosen, metrics=metrics, warnings=tuple(warnings))


def enough(groups: Sequence[Group], config: GrpoConfig) -> bool:
    """Whether a step needs no further round of rollouts (dynamic sampling, arXiv:2503.14476, section 3.2)."""
    return sum(teaches(group, config) for group in groups) >= config.tasks_per_step


def teaches(group: Group, config: GrpoConfig) -> bool:
    """Whether any of a group's tokens has an advantage that is not zero."""
    worth = _credit([group], config).advantages or ()
    return any(any(value) if isinstance(value, tuple) else value for value in worth)


def _credit(groups: Sequence[Group], config: GrpoConfig) -> Credit:
    by_turns = config.credit == "steps"
    rewards = [[reward_of(t, besides_turns=by_turns) for t in group.trajectories] for group in groups]
    worth = advantages(rewards, baseline=config.baseline, scale=config.scale)
    turns = [[turns_of(t) if by_turns else () for t in group.trajectories] for group in groups]
    later = turn_advantages(turns, baseline=config.baseline, scale=config.scale)
    rows: list[Row] = []
    values: list[float | tuple[float, ...]] = []
    masked = 0
    for index, group in enumerate(groups):
        for trajectory, value, added in zip(group.trajectories, worth[index], later[index], strict=True):
            if value is None:
                continue
            if config.mask_truncated and trajectory.stop is Stop.LENGTH:
                masked += 1
                continue
            for row, turn_of in rows_of(trajectory, str(index)):
                rows.append(row)
                values.append(tuple(value + added[turn] for turn in turn_of) if added else value)
    metrics = reward_metrics(rewards, worth) | length_metrics(rows, values) | {"masked": masked}
    warnings = []
    if masked and not rows:
        warnings.append(
            "100% of the rollouts were cut by the token budget and masked: nothing to learn from; "
            "raise sample.max_tokens"
        )
    if by_turns and rows and not any(map(any, turns)):
        warnings.append(
            "credit: steps, but no reward judges turns: let a part of kind process return a list, "
            "one entry a turn"
        )
    return Credit(tuple(rows), tuple(values), metrics=metrics, warnings=tuple(warnings))
