"""What an algorithm is: data that the one training loop plays.

    batch ─ credit ─▶ rows ─ extras, estimate ─▶ advantages ─ forward ─▶ LossInputs ─ loss ─▶ LossOutput

`credit` is a pure function of a batch, `estimate` (most algorithms have none) of a credit and of what models
say about its rows; `loss` is a pure function of tensors that returns a *sum*; the loop divides by
`denominator` of the whole minibatch. So the number of micro-batches changes nothing but memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator
from torch import Tensor

from renshu.config import StrictModel
from renshu.types import Row

BatchT = TypeVar("BatchT")
CLIP = 0.2  # how far the ratio may be from 1, as in PPO's paper
# What the loop hands to an algorithm: rows with the sampler's log-probs; log-probs of the reference;
# entropies; values of a critic; log-probs of the policy itself before the first update of a step.
Need = Literal["rollouts", "reference", "entropy", "values", "policy"]


class OptimiserConfig(StrictModel):
    """Settings every algorithm shares."""

    learning_rate: float = Field(1e-4, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps in which the rate climbs")
    weight_decay: float = Field(0.0, ge=0)
    max_gradient_norm: float = Field(1.0, gt=0)
    token_budget: int = Field(8192, gt=0, description="distinct tokens of one forward pass: bounds memory")

    @property
    def critic_learning_rate(self) -> float:
        """That of a critic, where one is trained along; it has the same schedule."""
        return self.learning_rate


class PracticeConfig(OptimiserConfig):
    """Settings of an algorithm that learns from rollouts which each of its steps samples."""

    steps: int = Field(40, gt=0)
    tasks_per_step: int = Field(8, gt=0)
    group: int = Field(8, gt=0, description="rollouts of one task")


class ClippedConfig(PracticeConfig):
    """Settings of an algorithm whose ratio to the policy that sampled is clipped: it may update often."""

    clip_low: float = Field(CLIP, gt=0, lt=1, description="the ratio is clipped below 1 - clip_low")
    clip_high: float | None = Field(None, gt=0, description="… above 1 + clip_high; absent: clip_low")
    beta: float = Field(0.0, ge=0, description="weight of the KL to the reference model")
    entropy_bonus: float = Field(0.0, ge=0, description="weight of the mean entropy per token")
    iterations: int = Field(1, gt=0, description="passes over the rollouts of a step")
    minibatches: int = Field(1, gt=0, description="optimiser updates of one pass")
    mask_truncated: bool = Field(False, description="do not train on rollouts cut by the token budget")
    learning_rate: float = Field(1e-5, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"

    @model_validator(mode="after")
    def _whole_minibatches(self) -> Self:
        if self.tasks_per_step % self.minibatches:
            valid = [n for n in range(1, self.tasks_per_step + 1) if self.tasks_per_step % n == 0]
            raise ValueError(
                f"tasks_per_step: {self.tasks_per_step} does not split into minibatches: {self.minibatches}; "
                f"possible: {', '.join(map(str, valid))}"
            )
        return self

    @property
    def ratio_bound(self) -> float:
        """clip_high with its default filled in."""
        return self.clip_low if self.clip_high is None else self.clip_high


@dataclass(frozen=True)
class Counts:
    """What the denominators of a minibatch are made of; masked and unscored rows are in none of them.

    rows, tokens: rows of the minibatch and their trained tokens, those skipped for zero advantage included.
    mean_tokens: trained tokens of the whole batch / number of its minibatches.
    """

    rows: int
    tokens: int
    mean_tokens: float


@dataclass(frozen=True)
class LossInputs:
    """Flat tensors of one micro-batch: N trained tokens, in row order then token order, of R rows.

    logprobs: (N,), of the model being trained, temperature-scaled, with gradient.
    row: (N,) long, ascending: which of the R rows a token belongs to.
    denominator, tokens: of the whole minibatch, for terms that are averaged in another way than the loss.
    old_logprobs, reference_logprobs, policy_logprobs: (N,), without gradient: of the sampler, of the
        reference, and of the model before the step's first update.
    entropy, values: (N,), of the model's distribution and of the critic, with gradient.
    advantages, old_values, returns: (N,), without gradient. labels: (R,) bool, see `Credit`.
    reference_point: what `Credit` says.
    """

    logprobs: Tensor
    row: Tensor
    rows: int
    denominator: float
    tokens: int
    old_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    policy_logprobs: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    advantages: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None
    labels: Tensor | None = None
    reference_point: float = 0.0


@dataclass(frozen=True)
class Mean:
    """A mean in the making: sums of micro-batches are added, then divided. Of nothing it is unknown: NaN."""

    sum: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    @classmethod
    def of(cls, values: Tensor) -> Mean:
        """Of all numbers in a flat tensor, without gradient."""
        return cls(values.detach().cpu().double().sum().item(), len(values))

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else math.nan


@dataclass(frozen=True)
class LossOutput:
    """total: () the sum over the micro-batch, before division by the denominator. metrics: detached means."""

    total: Tensor
    metrics: Mapping[str, Mean] = field(default_factory=dict)


@dataclass(frozen=True)
class Credit:
    """What a batch has to teach; rows of one group share a minibatch.

    advantages: what `rows[i]` is worth: one number, or one for each of its trained tokens.
    returns: what the critic should have said, for each trained token of each row.
    labels: of each row: chosen or rejected, wanted or unwanted.
    probes: rows that are not trained on: `estimate` is told their log-probs.
    reference_point: a number that the losses of all rows share (KTO's z_0, arXiv:2402.01306).
    metrics: about rewards, and how much was left out. warnings: sentences for the user.
    """

    rows: tuple[Row, ...]
    advantages: tuple[float | tuple[float, ...], ...] | None = None
    returns: tuple[tuple[float, ...], ...] | None = None
    labels: tuple[bool, ...] | None = None
    probes: tuple[Row, ...] = ()
    reference_point: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Extras:
    """What models say, before the step's first update and without gradient, about the trained tokens of rows.

    One tensor (n,) a row, on the CPU; None where the algorithm does not need it.
    """

    policy: tuple[Tensor, ...] | None = None
    reference: tuple[Tensor, ...] | None = None
    values: tuple[Tensor, ...] | None = None


# Completes a credit that depends on what models say: of its rows, and of its probes (no values).
Estimate = Callable[[Credit, Extras, Extras], Credit]


@dataclass(frozen=True)
class Algorithm(Generic[BatchT]):
    """One algorithm, as data.

    estimate: completes the credit once log-probs and values of the whole batch are known.
    whole_groups: the loss compares rows of a group, so that a group is never cut, whatever the token budget.
    skip_zero: rows of advantage zero have no gradient: spare their forward pass, count their tokens.
    iterations: passes over a batch. minibatches: optimiser updates of one pass, each on whole groups.
    """

    name: str
    config: OptimiserConfig
    needs: frozenset[Need]
    credit: Callable[[BatchT], Credit]
    loss: Callable[[LossInputs], LossOutput]
    denominator: Callable[[Counts], float]
    estimate: Estimate | None = None
    temperature: float = 1.0
    whole_groups: bool = False
    skip_zero: bool = False
    iterations: int = 1
    minibatches: int = 1
