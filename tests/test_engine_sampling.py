"""Sampling against a brute-force reference, transformers' own filters, and counted frequencies."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from renshu.engines import Sampling
from renshu.engines.sampling import kept, sample
from renshu.errors import ConfigError

SAMPLINGS = st.builds(
    Sampling,
    max_tokens=st.just(1),
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([1.0, 1.0, 0.1, 0.5, 0.9]),
    top_k=st.sampled_from([0, 0, 1, 3, 100]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.5, 1.0]),
)


def brute_force(logits: list[float], sampling: Sampling, uniform: float) -> tuple[int, float]:
    """One row in plain Python: filter token by token, then walk the cumulative sum of what is left."""
    temperature = sampling.temperature or 1.0
    top = max(logits)
    total = sum(math.exp((x - top) / temperature) for x in logits)
    probs = [math.exp((x - top) / temperature) / total for x in logits]
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    if sampling.temperature == 0:
        return order[0], math.log(probs[order[0]])
    left = order[: sampling.top_k] if sampling.top_k else order
    if sampling.top_p < 1:
        mass, nucleus = 0.0, []
        for token in left:
            nucleus.append(token)
            mass += probs[token]
            if mass >= sampling.top_p * sum(probs[other] for other in left):
                break
        left = nucleus
    left = [token for token in left if probs[token] >= sampling.min_p * probs[order[0]]]
    left.sort()
    point = uniform * sum(probs[token] for token in left)
    for token in left:
        point -= probs[token]
        if point < 0:
            return token, math.log(probs[token])
    return left[-1], math.log(probs[left[-1]])


@given(rows=st.lists(SAMPLINGS, min_size=1, max_size=6), seed=st.integers(0, 10**6))
@settings(max_examples=100)
def test_rows_of_mixed_settings_agree_with_brute_force(rows: list[Sampling], seed: int) -> None:
    draw = random.Random(seed)
    logits = [[draw.gauss(0, 2) for _ in range(12)] for _ in rows]
    uniforms = [draw.random() for _ in rows]
    tokens, logprobs = sample(torch.tensor(logits, dtype=torch.float64), rows, uniforms)
    expected = [brute_force(*row) for row in zip(logits, rows, uniforms, strict=True)]
    assert tokens.tolist() == [token for token, _ in expected]
    assert logprobs.tolist() == pytest.approx([logprob for _, logprob in expected], abs=1e-12)


@given(sampling=SAMPLINGS, seed=st.integers(0, 10**6))
def test_the_filters_keep_what_transformers_keeps(sampling: Sampling, seed: int) -> None:
    torch.manual_seed(seed)
    logits = (torch.randn(1, 20, dtype=torch.float64) * 2).sort(descending=True).values
    scores = logits.clone()
    if sampling.top_k:
        scores = TopKLogitsWarper(sampling.top_k)(None, scores)
    if sampling.top_p < 1:
        scores = TopPLogitsWarper(sampling.top_p)(None, scores)
    if sampling.min_p:
        scores = MinPLogitsWarper(sampling.min_p)(None, scores)
    assert kept(logits.softmax(-1), [sampling]).tolist() == scores.isfinite().tolist()


def test_numbers_worked_by_hand() -> None:
    """Probabilities .05 .5 .15 .3 at temperature 1; at temperature 1/2 proportional to their squares."""
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log().expand(5, 4)
    rows = [
        Sampling(max_tokens=1),  # .05 | .55 | .7 | 1
        Sampling(max_tokens=1, top_p=0.75),  # .5 and .3 are left: .625 | 1
        Sampling(max_tokens=1, top_k=3),  # .5263 | .6842 | 1
        Sampling(max_tokens=1, min_p=0.31),  # at least .155: .625 | 1
        Sampling(max_tokens=1, temperature=0.5),  # squares .0025 .25 .0225 .09: sum .365
    ]
    tokens, logprobs = sample(logits, rows, [0.54, 0.63, 0.68, 0.63, 0.0069])
    assert tokens.tolist() == [1, 3, 2, 3, 1]
    assert logprobs.exp().tolist() == pytest.approx([0.5, 0.3, 0.15, 0.3, 0.25 / 0.365], abs=1e-6)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_extreme_draws_never_choose_an_impossible_token(uniform: float) -> None:
    inf = float("inf")
    tokens, logprobs = sample(torch.tensor([[-inf, 0.0, 1.0, -inf]]), [Sampling(max_tokens=1)], [uniform])
    assert tokens.tolist() == [1 if uniform == 0 else 2]
    assert logprobs.isfinite().all()


def test_frequencies_follow_the_distribution() -> None:
    """Pearson's chi-square over 20,000 draws of one private stream; 27.9 is the 0.1 % point for 9 degrees."""
    torch.manual_seed(0)
    probs = torch.randn(10, dtype=torch.float64).softmax(-1)
    stream, draws = random.Random(7), 20_000
    tokens, _ = sample(
        probs.log().expand(draws, 10),
        [Sampling(max_tokens=1)] * draws,
        [stream.random() for _ in range(draws)],
    )
    expected = probs * draws
    chi_square = ((tokens.bincount(minlength=10) - expected) ** 2 / expected).sum()
    assert chi_square < 27.9


def test_half_precision_logits_are_scored_in_float32() -> None:
    logits = torch.tensor([[10.0, 9.0, 8.5]], dtype=torch.bfloat16)
    _, logprobs = sample(logits, [Sampling(max_tokens=1, temperature=0)], [0.0])
    assert logprobs.item() == pytest.approx(-math.log(1 + math.exp(-1) + math.exp(-1.5)), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", 1e-300),
        ("top_p", 0.0),
        ("top_k", -1),
        ("min_p", 2),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"sampling.{name} is"):
        Sampling(**{"max_tokens": 1} | {name: value})  # type: ignore[arg-type]
