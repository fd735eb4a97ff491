"""What algorithms read off rollouts: rewards, rows, and numbers about both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from itertools import count, repeat

from renshu.algorithms.advantages import spread
from renshu.errors import DataError
from renshu.types import Row, Scored, Trajectory, row_of


def reward_of(trajectory: Trajectory, *, besides_turns: bool = False) -> float | None:
    """The rollout's reward; None if it is unscored, or scored by something that is no number.

    besides_turns: without what the rewards of turns add to it.
    """
    score = trajectory.score
    if not isinstance(score, Scored) or not math.isfinite(score.value):
        return None
    return score.outcome if besides_turns else score.value


def turns_of(trajectory: Trajectory) -> tuple[float | None, ...]:
    """The rewards of the rollout's turns, none if nothing judges turns.

    Raises DataError where they are not as many as the turns that were sampled.
    """
    score = trajectory.score
    if not isinstance(score, Scored) or not score.turns:
        return ()
    sampled = sum(segment.sampled for path in trajectory.paths for segment in path)
    if len(score.turns) != sampled:
        raise DataError(
            f"a rollout of task {trajectory.task.id!r} has {sampled} sampled turns, but {len(score.turns)} "
            "of them are rewarded"
        )
    return score.turns


def rows_of(trajectory: Trajectory, group: str) -> Iterator[tuple[Row, list[int]]]:
    """The rows of a rollout, each with the turn of each of its trained tokens."""
    turn = count()
    for path in trajectory.paths:
        turn_of = [t for s in path if s.sampled for t in repeat(next(turn), len(s.ids))]
        row = row_of(path, group)
        if not turn_of:
            continue
        if row.logprobs is None:
            raise DataError(
                f"missing_logprobs: a rollout of task {trajectory.task.id!r} has sampled tokens without "
                "log-probs; sample with an engine that records them"
            )
        yield row, turn_of


def reward_metrics(
    rewards: Sequence[Sequence[float | None]], worth: Sequence[Sequence[float | None]]
) -> dict[str, float]:
    """Spread is judged within groups: a batch can look varied while no group has anything to compare.

    What the rollouts were like is told by `renshu.rollout.rollout_metrics`.
    """
    known = [[reward for reward in group if reward is not None] for group in rewards]
    compared = [group for group in known if len(group) > 1]
    return {
        "reward_spread": statistics.fmean(map(spread, compared)) if compared else math.nan,
        "groups_skipped": sum(all(value is None for value in group) for group in worth),
    }


def length_metrics(rows: Sequence[Row], values: Sequence[float | tuple[float, ...]]) -> dict[str, float]:
    """Mean trained tokens of better and of worse rollouts: a growing gap is a length bias."""
    lengths = [sum(row.trained) for row in rows]
    sums = [sum(value) if isinstance(value, tuple) else value for value in values]
    better = [length for length, value in zip(lengths, sums, strict=True) if value > 0]
    worse = [length for length, value in zip(lengths, sums, strict=True) if value < 0]
    return {
        "tokens_better": statistics.fmean(better) if better else math.nan,
        "tokens_worse": statistics.fmean(worse) if worse else math.nan,
    }
