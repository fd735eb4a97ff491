"""KTO: learn from single answers with a thumb up or down, measured from a reference point."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator

from renshu.algorithms.losses import row_means
from renshu.algorithms.preferences import (
    PreferenceConfig,
    implicit_rewards,
    labelled_of,
    prompt_length,
    side_metrics,
    usable_labelled,
)
from renshu.algorithms.protocol import (
    Algorithm,
    BatchT,
    Counts,
    Credit,
    Extras,
    LossInputs,
    LossOutput,
    Mean,
)
from renshu.types import Group, Labelled, Row

ALONE = "one answer in a batch: there is no other to estimate z_0 with, so it is taken to be 0"
UNLEARNS = (
    "no rollout of this step has a thumb up: it only unlearns what the model says now; show more in a "
    "warm-up, or take easier tasks"
)
BALANCED = (1.0, 4 / 3)  # λ_D·n_D / (λ_U·n_U), arXiv:2402.01306, eq. 8


class KtoConfig(PreferenceConfig):
    """Settings of a KTO stage. r: a row's log-ratio to the reference; λ: the weight of its label.

    loss:
        kto: λ·(1 - σ(beta·(r - z_0))) for thumbs up, λ·(1 - σ(beta·(z_0 - r))) for thumbs down
            (arXiv:2402.01306, eq. 7). z_0 estimates the KL to the reference: the mean r of mismatched
            prompts and answers of the step's whole batch, at least 0.
        apo_zero_unpaired: the same with z_0 = 0 (arXiv:2408.06266, eq. 7): only where good answers are
            better than those of the model; saves the passes over mismatched rows.
    balance: auto: weigh the rarer label up until λ_D·n_D / (λ_U·n_U) lies in [1, 4/3] (eq. 8; n: how often
        either label occurs in a batch).
    """

    SUPPLIED: ClassVar[tuple[str, ...]] = ("epochs", "rows_per_step")

    rows_per_step: int = Field(16, gt=0, description="answers of one update")
    loss: Literal["kto", "apo_zero_unpaired"] = "kto"
    desirable_weight: float = Field(1.0, gt=0, description="of thumbs up")
    undesirable_weight: float = Field(1.0, gt=0, description="of thumbs down")
    balance: Literal["none", "auto"] = "none"
    threshold: float | None = Field(
        None, description="thumb up where the reward is at least this; absent: where the rollout succeeded"
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.data is not None and self.threshold is not None:
            raise ValueError("threshold does nothing with data: its answers have their thumbs")
        return self


def algorithm(config: KtoConfig) -> Algorithm[Sequence[Labelled]]:
    """KTO as data for the loop; its batches are labelled answers."""
    return _learning_by(config, lambda answers: credit(answers, config))


def practice(config: KtoConfig) -> Algorithm[Sequence[Group]]:
    """The same where a batch is the rollouts of a step: each gets its thumb by reward or success."""
    return _learning_by(config, lambda groups: credit_of_groups(groups, config))


def _learning_by(config: KtoConfig, credit: Callable[[BatchT], Credit]) -> Algorithm[BatchT]:
    return Algorithm(
        name="kto",
        config=config,
        needs=frozenset({"reference"}),
        credit=credit,
        loss=lambda inputs: loss(inputs, config),
        denominator=rows_in,
        estimate=estimate if config.loss == "kto" else None,
    )


def credit_of_groups(groups: Sequence[Group], config: KtoConfig) -> Credit:
    made = labelled_of(groups, threshold=config.threshold)
    found = credit(made.items, config)
    warned = (UNLEARNS,) if found.labels and not any(found.labels) else ()
    return replace(found, metrics={**made.metrics, **found.metrics}, warnings=(*found.warnings, *warned))


def credit(answers: Sequence[Labelled], config: KtoConfig) -> Credit:
    """The usable rows with their labels, their weights as advantages, and mismatched rows as probes.

    Rows of one prompt are a group, so that their prompt is computed once.
    """
    usable = usable_labelled(answers, config)
    kinds = _kinds([answer.row for answer in usable.items])
    rows = [replace(answer.row, group=str(kind)) for answer, kind in zip(usable.items, kinds, strict=True)]
    labels = tuple(answer.good for answer in usable.items)
    chosen, rejected = sum(labels), len(labels) - sum(labels)
    good, bad = weights(chosen, rejected, config)
    estimated = config.loss == "kto"
    return Credit(
        rows=tuple(rows),
        advantages=tuple(good if label else bad for label in labels),
        labels=labels,
        probes=mismatched(rows, config.max_length) if estimated else (),
        metrics={"rows_chosen": chosen, "rows_rejected": rejected, **usable.metrics},
        warnings=(ALONE,) if estimated and len(rows) == 1 else (),
    )


def weights(good: int, bad: int, config: KtoConfig) -> tuple[float, float]:
    """Weights of thumbs up and down for so many of each (`balance`); of a single label, as configured."""
    up, down = config.desirable_weight, config.undesirable_weight
    if config.balance == "none" or not good or not bad:
        return up, down
    low, high = BALANCED
    share = up * good / (down * bad)
    if share < low:
        return low * down * bad / good, down
    if share > high:
        return up, up * good / (high * bad)
    return up, down


def mismatched(rows: Sequence[Row], max_length: int) -> tuple[Row, ...]:
    """Every row's prompt with the answer of the row `shift` before it, in a circle; none of a single row.

    The prompt is what comes before the first trained token. `shift` is the smallest at which the fewest
    answers meet their own prompt again: 1 where all prompts differ, as in TRL; the size of the groups where
    the rollouts of a task lie side by side.
    """
    if len(rows) < 2:
        return ()
    kinds = _kinds(rows)
    shift = min(range(1, len(rows)), key=lambda s: sum(kind == kinds[i - s] for i, kind in enumerate(kinds)))
    probes = []
    for i, row in enumerate(rows):
        prompt, answer = _prompt(row), rows[i - shift]
        start = prompt_length(answer)
        ids = (*prompt, *answer.ids[start:])
        trained = (*[False] * len(prompt), *answer.trained[start:])
        probes.append(Row(ids[:max_length], trained[:max_length], group=row.group))
    return tuple(probes)


def _kinds(rows: Sequence[Row]) -> list[int]:
    """A number for each row, the same where prompts are."""
    numbers: dict[tuple[int, ...], int] = {}
    return [numbers.setdefault(_prompt(row), len(numbers)) for row in rows]


def _prompt(row: Row) -> tuple[int, ...]:
    return row.ids[: prompt_length(row)]


def estimate(credit: Credit, extras: Extras, probes: Extras) -> Credit:
    """z_0 = max(0, mean over the mismatched rows of log p - log p_ref), of the whole batch; 0 without any."""
    point = 0.0
    if credit.probes:
        assert probes.policy is not None
        assert probes.reference is not None
        pairs = zip(probes.policy, probes.reference, strict=True)
        point = max(
            0.0, fmean((policy.double() - reference.double()).sum().item() for policy, reference in pairs)
        )
    return replace(credit, reference_point=point, metrics={**credit.metrics, "kl": point})


def rows_in(counts: Counts) -> float:
    return counts.rows


def loss(inputs: LossInputs, config: KtoConfig) -> LossOutput:
    """Σ over rows of λ·(1 - σ(±beta·(r - z_0))), see `KtoConfig`.

    accuracy: the share of rows on their side of z_0.
    """
    assert inputs.labels is not None
    assert inputs.advantages is not None
    logps, ratios = implicit_rewards(inputs)
    weight = row_means(inputs.advantages, inputs.row, inputs.rows)
    gain = config.beta * (ratios - inputs.reference_point)
    gain = torch.where(inputs.labels, gain, -gain)
    total = (weight * (1 - torch.sigmoid(gain))).sum()
    rewards = config.beta * ratios.detach()
    metrics = {**side_metrics(logps, rewards, inputs.labels), "accuracy": Mean.of(gain > 0)}
    return LossOutput(total, metrics)
