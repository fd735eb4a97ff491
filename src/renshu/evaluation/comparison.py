"""Arms side by side: paired tests against the first of them, tokens and cost, and what may be said of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renshu.errors import ConfigError
from renshu.evaluation.benchmark import Result
from renshu.evaluation.outcome import Tokens, tokens_a_task
from renshu.evaluation.statistics import bootstrap_mean, holm, mcnemar, paired_difference, paired_rates
from renshu.evaluation.words import p_value, points

LEVEL = 0.05  # of the p values that a verdict needs


@dataclass(frozen=True)
class Prices:
    """Dollars: per million tokens of a prompt and per million sampled ones, or per hour of a machine.

    cached: per million tokens of a prompt that the server found in its cache; None: as any of the prompt.
    """

    prompt: float | None = None
    sampled: float | None = None
    hour: float | None = None
    cached: float | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) != (self.sampled is None):
            raise ConfigError("tokens have two prices: give both --price-in and --price-out")
        if self.prompt is not None and self.hour is not None:
            raise ConfigError("give prices of tokens or --price-hour, not both")
        if self.cached is not None and self.prompt is None:
            raise ConfigError("a price of cached tokens needs those of the others")
        for price in (self.prompt, self.sampled, self.hour, self.cached):
            if price is not None and not 0 <= price < math.inf:
                raise ConfigError(f"a price is {price}: give dollars, 0 or more")

    def of_1000(self, tokens: Tokens | None, seconds: float | None) -> float | None:
        """Dollars of 1,000 tasks by the tokens, or seconds, of one; None where something is unknown."""
        if self.hour is not None:
            return None if seconds is None else 1000 * seconds / 3600 * self.hour
        if self.prompt is None or self.sampled is None or tokens is None:
            return None
        paid = tokens.prompt * self.prompt + tokens.sampled * self.sampled
        if self.cached is not None:
            if tokens.cached is None:
                return None
            paid -= tokens.cached * (self.prompt - self.cached)
        return 1000 * paid / 1e6


def compare(
    results: Sequence[Result], prices: Prices | None = None, own: Mapping[str, Prices] | None = None
) -> list[dict[str, Any]]:
    """A summary of every arm, with `against`: how it differs from the first (of which it is None).

    prices: of every arm that has none of its `own`, by name. difference, low, high: of success,
    with its paired 95 % interval. gained, lost, p: exact McNemar. p_holm: corrected for the number of arms.
    n: tasks scored in both. Raises ConfigError if the arms were not measured on the same tasks.
    """
    first, *others = results
    for other in others:
        if other.tasks != first.tasks:
            raise ConfigError(
                f"{first.arm} and {other.arm} were not measured on the same tasks: they cannot be compared"
            )
    against = [_against(first, other) for other in others]
    tested = [pair for pair in against if pair["n"]]
    for pair, corrected in zip(tested, holm([pair["p"] for pair in tested]), strict=True):
        pair["p_holm"] = corrected
    arms = []
    for result, found in zip(results, [None, *against], strict=True):
        price = (own or {}).get(result.arm) or prices or Prices()
        arm = result.summary() | {**_spent(result, price), "against": found}
        del arm["p_vs_base"]
        arms.append(arm)
    return arms


def _against(first: Result, other: Result) -> dict[str, Any]:
    one, two = first.successes, other.successes
    n = sum(a is not None and b is not None for a, b in zip(one, two, strict=True))
    test, difference = mcnemar(one, two), paired_rates(one, two)
    reward = paired_difference(
        [outcome.reward for outcome in first.outcomes], [outcome.reward for outcome in other.outcomes]
    )
    return {
        "arm": first.arm,
        "n": n,
        "difference": difference.estimate if n else None,
        "low": difference.low,
        "high": difference.high,
        "gained": test.gained,
        "lost": test.lost,
        "p": test.p if n else None,
        "p_holm": None,
        "reward_difference": None if math.isnan(reward.estimate) else reward.estimate,
    }


def _spent(result: Result, prices: Prices) -> dict[str, Any]:
    """Means of one greedy episode; None where unknown."""
    tokens = tokens_a_task(result.outcomes)
    seconds = None if result.seconds is None else result.seconds / len(result.outcomes)
    counted = None
    if tokens is not None:
        spread = bootstrap_mean([outcome.tokens.sampled for outcome in result.outcomes if outcome.tokens])
        counted = {**tokens.record(), "sampled_low": spread.low, "sampled_high": spread.high}
    return {
        "tokens": counted,
        "seconds": seconds,
        "cost_per_1000": prices.of_1000(tokens, seconds),
    }


def verdicts(arms: Sequence[Mapping[str, Any]], same: Mapping[str, str] | None = None) -> list[str]:
    """A sentence for every arm but the first, `final` before the others; none says more than its interval.

    That p is corrected is said once, in the first. same: arms by others that have the same weights; the two
    share one sentence.
    """
    same = same or {}
    others = sorted(arms[1:], key=lambda arm: arm["arm"] != "final")
    twins = {same.get(arm["arm"]) for arm in others}
    told = [arm for arm in others if arm["arm"] not in twins]
    several = len(others) > 1
    return [_verdict(arm, same.get(arm["arm"]), corrected=several and arm is told[0]) for arm in told] or [
        _alone(arms[0])
    ]


def _alone(arm: Mapping[str, Any]) -> str:
    if arm["success"] is None:
        return f"{arm['arm']}: no task could be scored."
    interval = f"95 % interval {arm['low']:.0%} to {arm['high']:.0%}"
    return f"{arm['arm']} solves {arm['success']:.0%} of {arm['n']} tasks ({interval})."


def _verdict(arm: Mapping[str, Any], twin: str | None, *, corrected: bool) -> str:
    pair = arm["against"]
    name = f"{arm['arm']} alone" if arm["arm"].endswith("few-shot") else arm["arm"]
    name += f" (same weights as {twin})" if twin is not None else ""
    if pair["difference"] is None:
        return f"{name}: no verdict, since no task was scored both in it and in {pair['arm']}."
    left_out = arm["n"] + arm["unscored"] - pair["n"]
    interval = f"95 % interval {points(pair['low'])} to {points(pair['high'])}"
    test = f"{p_value(pair['p_holm'])}{', corrected for several arms' if corrected else ''}"
    apart = f"; tasks unscored in one of them: {left_out}" if left_out else ""
    said = f"({interval}; {test}{apart})"
    if pair["p_holm"] < LEVEL and (pair["low"] > 0 or pair["high"] < 0):
        word = "more" if pair["difference"] > 0 else "fewer"
        return f"{name} solves {points(abs(pair['difference']))} points {word} than {pair['arm']} {said}."
    return f"{name}: no proven difference from {pair['arm']}, {points(pair['difference'])} points {said}."
