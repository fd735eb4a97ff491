"""PPO: a token is worth how much better things went after it than a critic had expected before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from renshu.algorithms.advantages import gae, whitened
from renshu.algorithms.losses import clipped_objective, importance_ratio, kl_k3
from renshu.algorithms.protocol import (
    Algorithm,
    ClippedConfig,
    Credit,
    Extras,
    LossInputs,
    LossOutput,
    Mean,
    Need,
)
from renshu.algorithms.rollouts import length_metrics, reward_metrics, reward_of, rows_of, turns_of
from renshu.config import StrictModel
from renshu.errors import ConfigError
from renshu.models.critic import Critic, ValueHead, ValueModel
from renshu.types import Group, Row, Scored, Stop, Trajectory

CRITIC_RATE = 10.0  # a critic begins with nothing and may move faster than a policy


class ValueConfig(StrictModel):
    """The critic: what it is and how it learns.

    critic: `head` is one linear layer on the policy's last states; `separate` a model of its own, which
        begins as a copy of the policy (below an adapter: of the adapter; what is frozen is shared).
    trunk: whether the gradient of the head's loss also reaches the policy's layers.
    clip: how far a value may move from what it was before the step's first update (0: freely).
    """

    critic: Literal["head", "separate"] = "head"
    trunk: bool = False
    coefficient: float = Field(0.1, gt=0, description="weight of the value loss")
    clip: float = Field(0.2, ge=0)
    learning_rate: float | None = Field(None, gt=0, description="absent: ten times that of the policy")
    inherit: bool = Field(False, description="begin with the critic of the stage that gave the weights")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.critic == "separate" and self.trunk:
            raise ValueError("trunk: true does nothing with critic: separate, which shares no layers")
        return self


class PpoConfig(ClippedConfig):
    """Settings of a PPO stage (arXiv:1707.06347).

    gamma, gae_lambda: per sampled token (GAE, arXiv:1506.02438).
    whiten: advantages get mean 0 and deviation 1 over the tokens of the batch; returns are left alone.
    kl: where beta · KL to the reference goes: into the `reward` of each token, as log p - log p_ref of the
        sampled one (k1; arXiv:1909.08593, eq. 2), or into the `loss`, as k3.
    """

    value: ValueConfig = ValueConfig()
    gamma: float = Field(1.0, ge=0, le=1)
    gae_lambda: float = Field(1.0, ge=0, le=1)
    whiten: bool = True
    kl: Literal["reward", "loss"] = "reward"
    iterations: int = Field(2, gt=0, description="passes over the rollouts of a step")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.kl == "loss" and not self.beta:
            raise ValueError("kl: loss does nothing without beta > 0")
        return self

    @property
    def critic_learning_rate(self) -> float:
        return self.value.learning_rate or CRITIC_RATE * self.learning_rate


def algorithm(config: PpoConfig, *, temperature: float) -> Algorithm[Sequence[Group]]:
    """PPO as data for the loop; its batches are groups, of one rollout each if you like.

    temperature: as sampled with. Raises ConfigError for greedy sampling, which tries nothing.
    """
    if temperature <= 0:
        raise ConfigError(
            f"temperature: {temperature}: PPO learns from what was tried; sample above 0, e.g. at 1.0"
        )
    needs: set[Need] = {"rollouts", "values"}
    if config.beta:
        needs.add("reference")
    if config.entropy_bonus:
        needs.add("entropy")
    return Algorithm(
        name="ppo",
        config=config,
        needs=frozenset(needs),
        credit=lambda groups: credit(groups, config),
        estimate=lambda credit, extras, _: estimate(credit, extras, config),
        loss=lambda inputs: loss(inputs, config),
        denominator=lambda counts: counts.tokens,
        temperature=temperature,
        iterations=config.iterations,
        minibatches=config.minibatches,
    )


def critic_of(model: Any, config: ValueConfig) -> Critic:
    """A critic that has learned nothing yet, for a policy as it is now."""
    return ValueModel(model) if config.critic == "separate" else ValueHead(model, trains_trunk=config.trunk)


@dataclass(frozen=True)
class Episodes(Credit):
    """Credit before values are known.

    rewards: what each trained token of each row earned. paths: the rows of each episode, in order.
    """

    rewards: tuple[tuple[float, ...], ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()


def credit(groups: Sequence[Group], config: PpoConfig) -> Episodes:
    """The rows of all scored rollouts with what their tokens earned, and a count of what was left out.

    The last sampled token of an episode earns its reward; where turns are judged, the last token of each turn
    earns that turn's share, so that an episode's tokens together earn `Scored.value`. Left out: unscored
    rollouts, and those that the token budget cut if `mask_truncated`; else these end where they were cut, as
    nothing is still to come. Raises DataError for a rollout without the sampler's log-probs.
    """
    rewards = [[reward_of(trajectory) for trajectory in group.trajectories] for group in groups]
    rows: list[Row] = []
    earned: list[tuple[float, ...]] = []
    paths: list[tuple[int, ...]] = []
    masked = 0
    for index, group in enumerate(groups):
        for trajectory, reward in zip(group.trajectories, rewards[index], strict=True):
            if reward is None:
                continue
            if config.mask_truncated and trajectory.stop is Stop.LENGTH:
                masked += 1
                continue
            found = list(rows_of(trajectory, str(index)))
            paths.append(tuple(range(len(rows), len(rows) + len(found))))
            rows += [row for row, _ in found]
            earned += _token_rewards(trajectory, [turn_of for _, turn_of in found])
    warnings = []
    if masked and not rows:
        warnings.append(
            "100% of the rollouts were cut by the token budget and masked: nothing to learn from; "
            "raise sample.max_tokens"
        )
    return Episodes(
        tuple(rows),
        rewards=tuple(earned),
        paths=tuple(filter(None, paths)),
        metrics=reward_metrics(rewards, rewards) | {"masked": masked},
        warnings=tuple(warnings),
    )


def _token_rewards(trajectory: Trajectory, turns: Sequence[Sequence[int]]) -> list[tuple[float, ...]]:
    """What each trained token of each path earned; turns: the turn of each of them."""
    score = trajectory.score
    assert isinstance(score, Scored)
    shares = [0.0] * len(turns_of(trajectory))
    for part in score.steps.values():
        known = sum(worth is not None for worth in part)
        for turn, worth in enumerate(part):
            shares[turn] += 0.0 if worth is None else worth / known
    earned = [[0.0] * len(turn_of) for turn_of in turns]
    if shares:
        for tokens, turn_of in zip(earned, turns, strict=True):
            for last in (i for i, turn in enumerate(turn_of) if turn_of[i + 1 : i + 2] != [turn]):
                tokens[last] = shares[turn_of[last]]
    if earned:
        earned[-1][-1] += score.outcome
    return [tuple(tokens) for tokens in earned]


def estimate(credit: Credit, extras: Extras, config: PpoConfig) -> Credit:
    """Advantages and returns, once values are known.

    An episode is the sequence of all tokens it sampled: GAE steps over what tools said, and from the last
    token of a path that was left behind to the first of the next one.
    """
    assert isinstance(credit, Episodes)
    assert extras.values is not None
    if not credit.rows:
        return replace(credit, advantages=(), returns=())
    rewards = [torch.tensor(earned, dtype=torch.float64) for earned in credit.rewards]
    metrics = dict(credit.metrics)
    if config.beta and config.kl == "reward":
        assert extras.reference is not None
        sampler = [torch.tensor(row.logprobs, dtype=torch.float64) for row in credit.rows]
        kl = [own - reference for own, reference in zip(sampler, extras.reference, strict=True)]
        rewards = [earned - config.beta * more for earned, more in zip(rewards, kl, strict=True)]
        metrics["kl"] = torch.cat(kl).mean().item()
    values = [value.double() for value in extras.values]
    advantages = [torch.empty(0)] * len(credit.rows)
    for path in credit.paths:
        found = gae(
            torch.cat([rewards[i] for i in path]).tolist(),
            torch.cat([values[i] for i in path]).tolist(),
            gamma=config.gamma,
            gae_lambda=config.gae_lambda,
        )
        lengths = [len(values[i]) for i in path]
        parts = torch.split(torch.tensor(found, dtype=torch.float64), lengths)
        for i, part in zip(path, parts, strict=True):
            advantages[i] = part
    returns = [advantage + value for advantage, value in zip(advantages, values, strict=True)]
    metrics |= _value_metrics(torch.cat(values), torch.cat(returns))
    worth = tuple(tuple(part.tolist()) for part in (whitened(advantages) if config.whiten else advantages))
    return replace(
        credit,
        advantages=worth,
        returns=tuple(tuple(part.tolist()) for part in returns),
        metrics=metrics | length_metrics(credit.rows, worth),
    )


def _value_metrics(values: Tensor, returns: Tensor) -> dict[str, float]:
    """explained_variance: 1 - Var(R - V) / Var(R); 1 is a perfect critic, 0 one that knows nothing."""
    variance = returns.var(correction=0).item()
    unexplained = (returns - values).var(correction=0).item()
    return {
        "values": values.mean().item(),
        "returns": returns.mean().item(),
        "explained_variance": 1 - unexplained / variance if variance else math.nan,
    }


def loss(inputs: LossInputs, config: PpoConfig) -> LossOutput:
    """Per token: -objective(ratio, A) + beta·k3 + coefficient·value loss - entropy_bonus·entropy.

    The value loss is 1/2 max((V - R)², (V_clipped - R)²) with V_clipped = V_old + clip(V - V_old, ±clip),
    as OpenAI's PPO2 has it.
    """
    assert inputs.old_logprobs is not None
    assert inputs.advantages is not None
    advantage, high = inputs.advantages, config.ratio_bound
    ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs, inputs.row, inputs.rows, sequence=False)
    per_token = -clipped_objective(ratio, advantage, clip_low=config.clip_low, clip_high=high)
    value_loss, value_clipped = _value_loss(inputs, config.value)
    metrics = {
        "policy_loss": Mean.of(per_token),
        "value_loss": Mean.of(value_loss),
        "value_clipped": Mean.of(value_clipped),
        "ratio": Mean.of(ratio),
        "clipped_high": Mean.of((ratio > 1 + high) & (advantage > 0)),
        "clipped_low": Mean.of((ratio < 1 - config.clip_low) & (advantage < 0)),
    }
    per_token = per_token + config.value.coefficient * value_loss
    if config.beta and config.kl == "loss":
        assert inputs.reference_logprobs is not None
        kl = kl_k3(inputs.logprobs, inputs.reference_logprobs)
        metrics["kl"] = Mean.of(kl)
        per_token = per_token + config.beta * kl
    if config.entropy_bonus:
        assert inputs.entropy is not None
        metrics["entropy"] = Mean.of(inputs.entropy)
        per_token = per_token - config.entropy_bonus * inputs.entropy
    return LossOutput(per_token.sum(), metrics)


def _value_loss(inputs: LossInputs, config: ValueConfig) -> tuple[Tensor, Tensor]:
    """The loss of each value, (N,), and where clipping decided it."""
    assert inputs.values is not None
    assert inputs.old_values is not None
    assert inputs.returns is not None
    plain = (inputs.values - inputs.returns) ** 2
    if not config.clip:
        return plain / 2, torch.zeros_like(plain, dtype=torch.bool)
    moved = (inputs.values - inputs.old_values).clamp(-config.clip, config.clip)
    clipped = (inputs.old_values + moved - inputs.returns) ** 2
    return torch.max(plain, clipped) / 2, clipped > plain
