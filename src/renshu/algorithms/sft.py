"""Supervised fine-tuning: raise the log-probability of every token the model should have sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from renshu.algorithms.protocol import (
    Algorithm,
    Counts,
    Credit,
    LossInputs,
    LossOutput,
    Mean,
    OptimiserConfig,
)
from renshu.types import Row


class SftConfig(OptimiserConfig):
    """Settings of a supervised stage."""

    data: str | None = Field(
        None, description="dialogues, JSON lines; absent: the environment's demonstrations"
    )
    trajectories: str | None = Field(None, description="verified rollouts of an earlier stage or run")
    threshold: float | None = Field(
        None, description="imitate trajectories of at least this reward; absent: those that succeeded"
    )
    best_of_group: bool = Field(False, description="of these, only the best of each group")
    demonstrations: int = Field(200, gt=0, description="number of demonstrations, where nothing else is said")
    careful: float = Field(
        1.0, ge=0, le=1, description="share of demonstrations played by solve(), the others by hurried()"
    )
    epochs: int = Field(1, gt=0)
    rows_per_step: int = Field(16, gt=0)
    max_length: int = Field(4096, gt=1, description="tokens of a row; what is longer is cut at its end")
    learning_rate: float = Field(2e-4, gt=0)

    @model_validator(mode="after")
    def _one_supply(self) -> Self:
        if self.data is not None and self.trajectories is not None:
            raise ValueError("data and trajectories: rows come from one of them; leave the other out")
        if self.trajectories is None and (self.threshold is not None or self.best_of_group):
            raise ValueError("threshold and best_of_group choose among trajectories: say which")
        return self


def loss(inputs: LossInputs) -> LossOutput:
    """L = -Σ log p(token), averaged by the loop over the trained tokens of the whole step.

    Not over those of a micro-batch: means of means would weigh tokens by the batch they fall into
    (transformers#34191).
    """
    total = -inputs.logprobs.sum()
    count = len(inputs.logprobs)
    metrics = {"mean_logprob": Mean(-total.item(), count)}
    return LossOutput(total, metrics)


def credit(rows: Sequence[Row]) -> Credit:
    return Credit(rows=tuple(rows), metrics={"rows": len(rows)})


def tokens(counts: Counts) -> float:
    return counts.tokens


def algorithm(config: SftConfig) -> Algorithm[Sequence[Row]]:
    """SFT as data for the loop; its batches are rows."""
    return Algorithm(
        name="sft", config=config, needs=frozenset(), credit=credit, loss=loss, denominator=tokens
    )
