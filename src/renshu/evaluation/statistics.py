"""Honest small-sample statistics: intervals beside every rate, paired tests between every two arms."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from renshu.seeding import generator


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval, in the unit of the data."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedTest:
    """Exact McNemar test. gained: tasks only the second arm solved; lost: tasks only the first solved."""

    gained: int
    lost: int
    p: float


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a rate (Wilson 1927, JASA 22). n = 0 knows nothing: NaN in [0, 1]."""
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n}")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate, spread = successes / n, z * z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(rate * (1 - rate) / n + spread / (4 * n))
    # At the ends the formula is exactly 0 or 1; rounding must not say otherwise.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(rate, low, high)


def mcnemar(first: Sequence[bool | None], second: Sequence[bool | None]) -> PairedTest:
    """Exact two-sided McNemar test of two arms on the same tasks (McNemar 1947, Psychometrika 12).

    first, second: outcomes of the same tasks in the same order; a task unscored (None) in either is left out.
    p is the binomial(gained + lost, 1/2) probability of a split at least as uneven.
    """
    if len(first) != len(second):
        raise ValueError(f"paired outcomes differ in length: {len(first)} and {len(second)}")
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    gained = sum(b and not a for a, b in pairs)
    lost = sum(a and not b for a, b in pairs)
    discordant, fewer = gained + lost, min(gained, lost)
    tail = sum(math.comb(discordant, k) for k in range(fewer + 1))
    return PairedTest(gained, lost, min(1.0, 2 * tail / 2**discordant))


def pass_hat_k(successes: int, n: int, k: int) -> float:
    """Unbiased estimate of pass^k, the chance that k independent tries all succeed, from n tries.

    C(successes, k) / C(n, k) (Yao et al. 2024, tau-bench, equation 1).
    """
    if not 1 <= k <= n or not 0 <= successes <= n:
        raise ValueError(f"pass^{k} needs {k} of {n} tries and {successes} successes within them")
    return math.comb(successes, k) / math.comb(n, k)


def bootstrap_mean(
    values: Sequence[float], *, confidence: float = 0.95, draws: int = 2000, seed: int = 0
) -> Interval:
    """Percentile bootstrap interval of a mean (Efron 1979, Annals of Statistics 7)."""
    if not values:
        return Interval(math.nan, math.nan, math.nan)
    source: random.Random = generator("bootstrap", seed)
    means = sorted(fmean(source.choices(values, k=len(values))) for _ in range(draws))
    tail = (1 - confidence) / 2
    return Interval(fmean(values), means[int(tail * (draws - 1))], means[math.ceil((1 - tail) * (draws - 1))])


def paired_difference(
    first: Sequence[float | None], second: Sequence[float | None], *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Mean of second - first over the tasks known in both, with its bootstrap interval."""
    if len(first) != len(second):
        raise ValueError(f"paired values differ in length: {len(first)} and {len(second)}")
    both = [
        float(b) - float(a) for a, b in zip(first, second, strict=True) if a is not None and b is not None
    ]
    return bootstrap_mean(both, confidence=confidence, seed=seed)
