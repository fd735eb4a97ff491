"""From rewards to advantages. None is a reward nobody knows: it enters no mean and gets no advantage."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Baseline = Literal["group", "rloo", "none"]
Scale = Literal["group", "batch", "none"]

EPSILON = 1e-4  # added to a spread before dividing by it, as TRL does
NEGLIGIBLE = 1e-6  # a spread below this share of the rewards' size is rounding, not information


def spread(rewards: Sequence[float]) -> float:
    """Sample standard deviation (n - 1); exactly 0.0 below two rewards or if they differ by rounding only."""
    if len(rewards) < 2:
        return 0.0
    deviation = statistics.stdev(rewards)
    return deviation if deviation > NEGLIGIBLE * max(abs(reward) for reward in rewards) else 0.0


def advantages(
    groups: Sequence[Sequence[float | None]], *, baseline: Baseline, scale: Scale
) -> list[list[float | None]]:
    """(reward - baseline) / (spread + 1e-4) of each rollout; None where there is nothing to compare with.

    baseline: `group` the mean of the group (GRPO, arXiv:2402.03300, section 4.1.2), `rloo` the mean of the
    others (arXiv:2402.14740, eq. 6), `none` 0. scale: spread of the `group`, of the whole `batch`, or `none`:
    undivided (Dr. GRPO, arXiv:2503.20783). With a baseline, a group with fewer than two known rewards yields
    None for all, and one whose rewards are equal yields exact zeros. A spread of 0 divides nothing.
    """
    batch_spread = spread([reward for group in groups for reward in group if reward is not None])
    return [_group(group, baseline, scale, batch_spread) for group in groups]


def turn_advantages(
    groups: Sequence[Sequence[Sequence[float | None]]], *, baseline: Baseline, scale: Scale
) -> list[list[list[float]]]:
    """What each turn of each rollout is worth by the rewards of turns: those of itself and of all later ones.

    Every reward is normalised among all of its group, then A_t = Σ_{u ≥ t} r̃_u (process supervision,
    arXiv:2402.03300, section 4.1.3); baseline and scale as in `advantages`. None adds nothing.
    """
    flat = [[reward for rollout in group for reward in rollout] for group in groups]
    normal = advantages(flat, baseline=baseline, scale=scale)
    worth = []
    for group, known in zip(groups, normal, strict=True):
        left = iter(known)
        turns = [[next(left) or 0.0 for _ in rollout] for rollout in group]
        worth.append([list(accumulate(reversed(rollout)))[::-1] for rollout in turns])
    return worth


def gae(rewards: Sequence[float], values: Sequence[float], *, gamma: float, gae_lambda: float) -> list[float]:
    """A_t = Σ_k (γλ)^k δ_{t+k} with δ_t = r_t + γ V_{t+1} - V_t (GAE, arXiv:1506.02438, eq. 16).

    Of one episode: nothing is to come after its last step, where V is 0.
    """
    worth: list[float] = []
    later = value_after = 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        later = reward + gamma * value_after - value + gamma * gae_lambda * later
        value_after = value
        worth.append(later)
    return worth[::-1]


def whitened(parts: Sequence[Tensor]) -> list[Tensor]:
    """The parts with mean 0 and sample deviation 1 over all numbers in them (at least one).

    As elsewhere 1e-4 is added to the deviation. One that is only rounding, of rewards within 0..1 or of
    larger numbers, yields zeros: Adam would make a full step of it, however small.
    """
    numbers = torch.cat(list(parts))
    deviation = numbers.std().item() if len(numbers) > 1 else 0.0
    if deviation <= NEGLIGIBLE * max(1.0, numbers.abs().max().item()):
        return [torch.zeros_like(part) for part in parts]
    return [(part - numbers.mean()) / (deviation + EPSILON) for part in parts]


def _group(
    rewards: Sequence[float | None], baseline: Baseline, scale: Scale, batch_spread: float
) -> list[float | None]:
    known = [reward for reward in rewards if reward is not None]
    if not known or (baseline != "none" and len(known) < 2):
        return [None] * len(rewards)
    group_spread = spread(known)
    if baseline != "none" and group_spread == 0.0:
        return [None if reward is None else 0.0 for reward in rewards]
    chosen = {"group": group_spread, "batch": batch_spread, "none": 0.0}[scale]
    divisor = chosen + EPSILON if chosen else 1.0
    mean = 0.0 if baseline == "none" else statistics.fmean(known)
    if baseline == "rloo":  # r - mean of the others = n / (n - 1) · (r - mean of all)
        divisor *= (len(known) - 1) / len(known)
    return [None if reward is None else (reward - mean) / divisor for reward in rewards]
