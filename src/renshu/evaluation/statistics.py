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


def wilson(successes: float, n: int, confidence: float = 0.95) -> Interval:
    """Wilson score interval of a rate (Wilson 1927, JASA 22). n = 0 knows nothing: NaN in [0, 1].

    successes may be the sum of n shares in [0, 1]: these vary less than successes and failures of the same
    mean, so the interval is then on the wide side.
    """
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


def holm(ps: Sequence[float]) -> list[float]:
    """The p values of several tests, corrected for their number by Holm's step-down (Holm 1979, Scand. J.
    Statist. 6): the chance of any false claim stays below the level at which they are read.
    """
    adjusted = [0.0] * len(ps)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = highest
    return adjusted


def paired_rates(
    first: Sequence[bool | None], second: Sequence[bool | None], confidence: float = 0.95
) -> Interval:
    """Success of the second arm less that of the first, on the tasks known in both, with its interval.

    Newcombe's square-and-add of Wilson intervals (Newcombe 1998, Statistics in Medicine 17, 2635, method 10):
    unlike a bootstrap it is never of width 0, however few the tasks are. No such task: NaN in [-1, 1].
    """
    if len(first) != len(second):
        raise ValueError(f"paired outcomes differ in length: {len(first)} and {len(second)}")
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    if not pairs:
        return Interval(math.nan, -1.0, 1.0)
    one = wilson(sum(a for a, _ in pairs), len(pairs), confidence)
    two = wilson(sum(b for _, b in pairs), len(pairs), confidence)
    phi = _correlation(pairs)
    difference = two.estimate - one.estimate
    down = _added(two.estimate - two.low, one.high - one.estimate, phi)
    up = _added(two.high - two.estimate, one.estimate - one.low, phi)
    return Interval(difference, max(-1.0, difference - down), min(1.0, difference + up))


def _correlation(pairs: Sequence[tuple[bool, bool]]) -> float:
    """phi of paired outcomes, its numerator corrected for continuity where it is positive."""
    both, neither = sum(a and b for a, b in pairs), sum(not a and not b for a, b in pairs)
    lost, gained = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
    product = (both + lost) * (gained + neither) * (both + gained) * (lost + neither)
    if product == 0:  # an arm that solved all or none goes with nothing
        return 0.0
    numerator: float = both * neither - lost * gained
    if numerator > 0:
        numerator = max(numerator - len(pairs) / 2, 0.0)
    return numerator / math.sqrt(product)


def _added(one: float, two: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * two + two * two))


def pass_at_k(successes: int, n: int, k: int) -> float:
    """Unbiased estimate of pass@k, the chance that at least one of k independent tries succeeds, from n.

    1 - C(n - successes, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374, equation 1).
    """
    _check_tries("pass@", successes, n, k)
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(successes: int, n: int, k: int) -> float:
    """Unbiased estimate of pass^k, the chance that k independent tries all succeed, from n tries.

    C(successes, k) / C(n, k) (Yao et al. 2024, tau-bench, equation 1).
    """
    _check_tries("pass^", successes, n, k)
    return math.comb(successes, k) / math.comb(n, k)


def _check_tries(name: str, successes: int, n: int, k: int) -> None:
    """Fewer tries than k say nothing: a smaller or larger denominator would be a made-up number."""
    if not 1 <= k <= n or not 0 <= successes <= n:
        raise ValueError(f"{name}{k} needs {k} of {n} tries and {successes} successes within them")


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
