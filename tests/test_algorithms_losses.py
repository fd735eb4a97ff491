"""Losses on tensors, with numbers worked by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from renshu.algorithms import Counts, GrpoConfig, LossInputs, SftConfig, grpo, sft
from renshu.algorithms.losses import clipped_objective, importance_ratio, kl_k3, row_means


def inputs(lengths: list[int], advantages: list[float], **options: Any) -> LossInputs:
    """Rows of the given lengths whose ratios are all 1, unless `old_logprobs` says otherwise."""
    total = sum(lengths)
    logprobs = torch.zeros(total, requires_grad=True)
    row = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    options = {"old_logprobs": torch.zeros(total), "denominator": 1.0, "tokens": total} | options
    return LossInputs(logprobs, row, len(lengths), advantages=torch.tensor(advantages)[row], **options)


def test_clipped_objective_by_hand() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.1, 2.0, 2.0, 9.0])
    advantage = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    found = clipped_objective(ratio, advantage, clip_low=0.2, clip_high=0.3)
    assert found.tolist() == pytest.approx([0.5, -0.8, 1.1, 1.3, -2.0, -9.0])
    bounded = clipped_objective(ratio, advantage, clip_low=0.2, clip_high=0.3, delta=3.0)
    assert bounded.tolist() == pytest.approx([0.5, -0.8, 1.1, 1.3, -2.0, -3.0])


def test_ratios_by_hand() -> None:
    logprobs = torch.log(torch.tensor([0.2, 0.4, 0.3]))
    old = torch.log(torch.tensor([0.1, 0.1, 0.6]))
    row = torch.tensor([0, 0, 1])
    assert importance_ratio(logprobs, old, row, 2, sequence=False).tolist() == pytest.approx([2, 4, 0.5])
    # geometric mean of 2 and 4
    expected = [math.sqrt(8), math.sqrt(8), 0.5]
    assert importance_ratio(logprobs, old, row, 2, sequence=True).tolist() == pytest.approx(expected)


def test_k3_by_hand() -> None:
    reference, own = torch.log(torch.tensor([0.5, 0.1, 0.3])), torch.log(torch.tensor([0.25, 0.2, 0.3]))
    expected = [2 - math.log(2) - 1, 0.5 + math.log(2) - 1, 0.0]
    assert kl_k3(own, reference).tolist() == pytest.approx(expected, abs=1e-6)


def test_row_means_of_an_empty_row_are_zero() -> None:
    means = row_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 2]), 3)
    assert means.tolist() == [2.0, 0.0, 5.0]


def loss_of(config: GrpoConfig, given: LossInputs, counts: Counts, max_tokens: int = 100) -> float:
    return grpo.loss(given, config).total.item() / grpo.denominator(config, max_tokens)(counts)


def test_every_average_by_hand() -> None:
    # ratio 1: token losses are -A. Row 1: 2 tokens of +1. Row 2: 8 tokens of -0.5.
    given, counts = inputs([2, 8], [1.0, -0.5]), Counts(rows=2, tokens=10, mean_tokens=20)
    expected = {"grpo": (-1 + 0.5) / 2, "bnpo": 2 / 10, "dapo": 2 / 20, "dr_grpo": 2 / 200}
    for loss, value in expected.items():
        assert loss_of(GrpoConfig(loss=loss), given, counts) == pytest.approx(value)


def test_e11_the_masked_row_is_in_no_denominator() -> None:
    # what is left of lengths [10, 90] with the second row masked: token losses of 1
    given, counts = inputs([10], [-1.0]), Counts(rows=1, tokens=10, mean_tokens=10)
    for loss in ("grpo", "bnpo", "dapo"):
        assert loss_of(GrpoConfig(loss=loss), given, counts) == pytest.approx(1.0)


def test_e16_dr_grpo_weighs_tokens_of_short_and_long_rows_alike() -> None:
    weights = {}
    for loss in ("grpo", "dr_grpo"):
        given = inputs([10, 100], [-1.0, -1.0])
        grpo.loss(given, GrpoConfig(loss=loss)).total.backward()
        gradient = given.logprobs.grad
        assert gradient is not None
        weights[loss] = (gradient[0].item(), gradient[-1].item())
    assert weights["dr_grpo"] == (1.0, 1.0)
    assert weights["grpo"] == pytest.approx((0.1, 0.01))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("settings", [{}, {"ratio": "sequence"}, {"loss": "cispo"}, {"beta": 0.1}])
def test_e15_a_broken_sampler_gives_finite_gradients(advantage: float, settings: dict[str, Any]) -> None:
    given = inputs([3], [advantage], old_logprobs=torch.tensor([-200.0, 0.0, 0.0]))
    given = LossInputs(**{**vars(given), "reference_logprobs": torch.tensor([200.0, 0.0, 0.0])})
    total = grpo.loss(given, GrpoConfig(**settings)).total
    total.backward()
    assert given.logprobs.grad is not None
    assert torch.isfinite(total)
    assert torch.isfinite(given.logprobs.grad).all()
    # the other tokens still teach, unless the whole row shares one ratio
    assert (given.logprobs.grad[1].item() != 0.0) == (settings.get("ratio") != "sequence")


def test_cispo_keeps_the_gradient_of_clipped_tokens() -> None:
    old = torch.log(torch.tensor([0.1, 1.0]))  # ratios 10 and 1
    gradients = {}
    for loss in ("dapo", "cispo"):
        given = inputs([2], [1.0], old_logprobs=old)
        grpo.loss(given, GrpoConfig(loss=loss)).total.backward()
        assert given.logprobs.grad is not None
        gradients[loss] = given.logprobs.grad.tolist()
    assert gradients["dapo"] == [0.0, -1.0]
    assert gradients["cispo"] == pytest.approx([-5.0, -1.0])  # capped at 1 + 4


def test_clip_metrics_by_hand() -> None:
    old = torch.log(torch.tensor([0.5, 1.0, 2.0, 2.0]))  # ratios 2, 1, 0.5, 0.5
    found = grpo.loss(inputs([2, 2], [1.0, -1.0], old_logprobs=old), GrpoConfig()).metrics
    assert found["clipped_high"].value == 0.25
    assert found["clipped_low"].value == 0.5
    assert found["ratio"].value == pytest.approx(1.0)


def test_e17_sft_divides_by_the_tokens_of_the_step() -> None:
    # micro-batches of 2 tokens at loss 4 and 8 tokens at loss 1: (8 + 8) / 10, in one, two or ten pieces
    losses = torch.tensor([4.0] * 2 + [1.0] * 8)
    divisor = sft.algorithm(SftConfig()).denominator(Counts(rows=2, tokens=10, mean_tokens=10))
    for pieces in (losses.split(10), losses.split([2, 8]), losses.split(1)):
        total = sum(
            sft.loss(LossInputs(-piece, torch.zeros(len(piece)), 1, divisor, 10)).total.item()
            for piece in pieces
        )
        assert total / divisor == pytest.approx(1.6)
