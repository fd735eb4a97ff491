"""Chosen log-probs and entropies: by hand, against torch's log-softmax, and their gradients numerically."""

from __future__ import annotations

import math

import pytest
import torch

from renshu.tree import logprobs
from renshu.tree.logprobs import chosen_logprobs


def test_by_hand() -> None:
    """Logits 0 and ln 3: probabilities 1/4 and 3/4; at temperature 1/2 they are squared: 1/10 and 9/10."""
    logits = torch.tensor([[0.0, math.log(3)]])
    index, target = torch.tensor([0, 0]), torch.tensor([1, 0])
    found, entropy = chosen_logprobs(logits, index, target, 1.0, True)
    assert found.tolist() == pytest.approx([math.log(0.75), math.log(0.25)])
    assert entropy is not None
    assert entropy.tolist() == pytest.approx([-0.25 * math.log(0.25) - 0.75 * math.log(0.75)] * 2)
    found, entropy = chosen_logprobs(logits, index, target, 0.5, False)
    assert found.tolist() == pytest.approx([math.log(0.9), math.log(0.1)])
    assert entropy is None


@pytest.mark.parametrize("entropy", [False, True])
def test_gradient(entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numerically, with repeated rows and targets, and more rows than are worked on at once."""
    monkeypatch.setattr(logprobs, "_ROWS", 2)
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    index, target = torch.tensor([4, 0, 0, 0, 2, 3]), torch.tensor([1, 3, 3, 0, 2, 1])

    def both(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x for x in chosen_logprobs(logits, index, target, 0.7, entropy) if x is not None)

    assert len(both(logits)) == 1 + entropy
    assert torch.autograd.gradcheck(both, (logits,))


def test_impossible_tokens_have_no_entropy_and_no_gradient() -> None:
    """Logits of minus infinity, as some models give to unused ids."""
    logits = torch.tensor([[0.0, 0.0, float("-inf")]], requires_grad=True)
    found, entropy = chosen_logprobs(logits, torch.tensor([0]), torch.tensor([1]), 1.0, True)
    assert entropy is not None
    assert entropy.item() == pytest.approx(math.log(2))
    (found.sum() + entropy.sum()).backward()
    assert logits.grad is not None
    assert logits.grad[0].tolist() == pytest.approx([-0.5, 0.5, 0.0])


def test_half_precision_logits_are_computed_in_float32() -> None:
    logits = torch.randn(3, 50).to(torch.bfloat16)
    index, target = torch.tensor([2, 0]), torch.tensor([7, 49])
    found, _ = chosen_logprobs(logits, index, target, 1.0, False)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, logits.float().log_softmax(-1)[index, target])
