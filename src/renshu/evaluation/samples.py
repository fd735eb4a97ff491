"""Several sampled tries at the same task: how reliable an agent is, and how varied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pydantic import Field

from renshu.config import StrictModel
from renshu.evaluation.outcome import Outcome
from renshu.evaluation.statistics import pass_at_k, pass_hat_k, wilson


class Tries(StrictModel):
    """How often each task is tried, beside the greedy episode, and at which temperature."""

    k: int = Field(4, ge=1)
    temperature: float = Field(1.0, gt=0)


@dataclass(frozen=True)
class SampledResult:
    """The outcomes of k tries of every task, in the order of the tasks."""

    tries: Tries
    outcomes: tuple[tuple[Outcome, ...], ...]

    def summary(self) -> dict[str, Any]:
        """pass^j (all of j tries succeed) and pass@j (at least one does) for j = 1 to k, as means over tasks.

        A task with an unscored try is left out and counted: fewer tries than k say nothing about k. low,
        high: 95 % interval of pass^k. distinct: different answers to a task, as a share of those given.
        """
        k = self.tries.k
        solved = [
            sum(bool(outcome.success) for outcome in tries)
            for tries in self.outcomes
            if all(outcome.success is not None for outcome in tries)
        ]
        reliable = wilson(sum(pass_hat_k(c, k, k) for c in solved), len(solved))
        variety = [share for tries in self.outcomes if (share := distinct_share(tries)) is not None]
        return {
            "k": k,
            "temperature": self.tries.temperature,
            "n": len(solved),
            "unscored": len(self.outcomes) - len(solved),
            "pass_hat": [fmean(pass_hat_k(c, k, j) for c in solved) for j in range(1, k + 1) if solved],
            "pass_at": [fmean(pass_at_k(c, k, j) for c in solved) for j in range(1, k + 1) if solved],
            "low": reliable.low,
            "high": reliable.high,
            "distinct": fmean(variety) if variety else None,
        }


def distinct_share(outcomes: Sequence[Outcome]) -> float | None:
    """Different final answers / answers; None if no episode came to one."""
    answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
    return len(set(answers)) / len(answers) if answers else None


def repeated(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Many tries of one task: success with its Wilson 95 % interval, and what the answers were.

    distinct: different final answers. unanswered: episodes that were cut before one. commonest, share: the
    answer given most often (the first where two are equal) and its share of the answers.
    """
    known = [outcome.success for outcome in outcomes if outcome.success is not None]
    answers = Counter(outcome.answer for outcome in outcomes if outcome.answer is not None)
    interval = wilson(sum(known), len(known))
    (commonest, count) = answers.most_common(1)[0] if answers else (None, 0)
    return {
        "success": interval.estimate if known else None,
        "low": interval.low,
        "high": interval.high,
        "n": len(known),
        "unscored": len(outcomes) - len(known),
        "distinct": len(answers),
        "unanswered": len(outcomes) - answers.total(),
        "commonest": commonest,
        "share": count / answers.total() if answers else None,
    }
