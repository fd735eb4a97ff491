"""DPO and its relatives: raise the chosen answer above the rejected one, as seen from a reference model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from renshu.algorithms.losses import row_means, row_sums
from renshu.algorithms.preferences import (
    PreferenceConfig,
    implicit_rewards,
    pairs_of,
    side_metrics,
    usable_pairs,
)
from renshu.algorithms.protocol import Algorithm, BatchT, Counts, Credit, LossInputs, LossOutput, Mean
from renshu.types import Group, Pair


class DpoConfig(PreferenceConfig):
    """Settings of a DPO stage. h: log-ratio of the chosen row minus that of the rejected one.

    loss:
        sigmoid: -log σ(beta·h) (arXiv:2305.18290, eq. 7).
        sigmoid_norm: the same with log-ratios per trained token, so that no length is favoured (Tülu 3,
            arXiv:2411.15124, section 5); beta is larger there, e.g. 5.
        ipo: (h - 1/(2·beta))², log-ratios per trained token (arXiv:2310.12036, eq. 17): does not push
            preferences that are certain ever further.
        hinge: max(0, 1 - beta·h) (SLiC, arXiv:2305.10425).
        robust: the unbiased loss where a share `label_smoothing` of the preferences is turned round
            (arXiv:2403.00409).
    label_smoothing: ε; of sigmoid and sigmoid_norm: -(1 - ε)·log σ(beta·h) - ε·log σ(-beta·h) (cDPO).
    nll: weight of -log p per token of the chosen row beside the loss, against a falling likelihood of both
        sides (arXiv:2404.19733, eq. 1).
    """

    SUPPLIED: ClassVar[tuple[str, ...]] = ("epochs", "pairs_per_step")

    pairs_per_step: int = Field(16, gt=0, description="pairs of one update")
    loss: Literal["sigmoid", "sigmoid_norm", "ipo", "hinge", "robust"] = "sigmoid"
    label_smoothing: float = Field(0.0, ge=0, lt=0.5, description="share of preferences taken to be wrong")
    reference_free: bool = Field(False, description="compare log-probs, not log-ratios to a reference")
    nll: float = Field(0.0, ge=0, description="weight of imitating the chosen answer")
    pairs: Literal["best_worst", "all"] = "best_worst"
    margin: float = Field(0.0, ge=0, description="rewards of a pair of rollouts differ by more than this")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.label_smoothing and self.loss in ("ipo", "hinge"):
            raise ValueError(f"label_smoothing does nothing with loss: {self.loss}")
        if self.data is not None and (self.pairs != "best_worst" or self.margin):
            raise ValueError("pairs and margin do nothing with data: its pairs are made")
        if self.group < 2:
            raise ValueError("group: 1: the rollouts of a task are compared, so DPO needs group >= 2")
        return self


def algorithm(config: DpoConfig) -> Algorithm[Sequence[Pair]]:
    """DPO as data for the loop; its batches are pairs."""
    return _learning_by(config, lambda pairs: credit(pairs, config))


def practice(config: DpoConfig) -> Algorithm[Sequence[Group]]:
    """The same where a batch is the rollouts of a step: pairs are made of those that differ in reward."""
    return _learning_by(config, lambda groups: credit_of_groups(groups, config))


def _learning_by(config: DpoConfig, credit: Callable[[BatchT], Credit]) -> Algorithm[BatchT]:
    return Algorithm(
        name="dpo",
        config=config,
        needs=frozenset() if config.reference_free else frozenset({"reference"}),
        credit=credit,
        loss=lambda inputs: loss(inputs, config),
        denominator=pairs_in,
        whole_groups=True,
    )


def credit_of_groups(groups: Sequence[Group], config: DpoConfig) -> Credit:
    made = pairs_of(groups, choose=config.pairs, margin=config.margin)
    found = credit(made.items, config)
    return replace(found, metrics={**made.metrics, **found.metrics})


def credit(pairs: Sequence[Pair], config: DpoConfig) -> Credit:
    """The rows of all usable pairs, chosen and rejected in turn; what was left out is counted."""
    usable = usable_pairs(pairs, config)
    sides = [(pair.chosen, pair.rejected) for pair in usable.items]
    return Credit(
        rows=tuple(replace(row, group=str(number)) for number, pair in enumerate(sides) for row in pair),
        labels=(True, False) * len(sides),
        metrics={"pairs": len(sides), **usable.metrics},
    )


def pairs_in(counts: Counts) -> float:
    return counts.rows / 2


def loss(inputs: LossInputs, config: DpoConfig) -> LossOutput:
    """Σ over pairs of the loss that `DpoConfig` names; chosen and rejected rows alternate."""
    assert inputs.labels is not None
    chosen = inputs.labels
    logps, ratios = implicit_rewards(inputs)
    scores = ratios
    if config.loss in ("sigmoid_norm", "ipo"):
        scores = ratios / row_sums(ratios.new_ones(len(inputs.row)), inputs.row, inputs.rows)
    total = LOSSES[config.loss](scores[chosen] - scores[~chosen], config).sum()
    if config.nll:
        means = row_means(inputs.logprobs, inputs.row, inputs.rows)
        total = total - config.nll * means[chosen].sum()
    rewards = config.beta * ratios.detach()
    margins = rewards[chosen] - rewards[~chosen]
    metrics = {
        **side_metrics(logps, rewards, chosen),
        "margin": Mean.of(margins),
        "accuracy": Mean.of(margins > 0),
    }
    return LossOutput(total, metrics)


def _sigmoid(h: Tensor, config: DpoConfig) -> Tensor:
    right, wrong = -logsigmoid(config.beta * h), -logsigmoid(-config.beta * h)
    return (1 - config.label_smoothing) * right + config.label_smoothing * wrong


def _ipo(h: Tensor, config: DpoConfig) -> Tensor:
    return (h - 1 / (2 * config.beta)).square()


def _hinge(h: Tensor, config: DpoConfig) -> Tensor:
    return relu(1 - config.beta * h)


def _robust(h: Tensor, config: DpoConfig) -> Tensor:
    right, wrong = -logsigmoid(config.beta * h), -logsigmoid(-config.beta * h)
    smoothing = config.label_smoothing
    return ((1 - smoothing) * right - smoothing * wrong) / (1 - 2 * smoothing)


LOSSES: dict[str, Callable[[Tensor, DpoConfig], Tensor]] = {
    "sigmoid": _sigmoid,
    "sigmoid_norm": _sigmoid,
    "ipo": _ipo,
    "hinge": _hinge,
    "robust": _robust,
}
