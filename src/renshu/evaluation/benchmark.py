"""A benchmark: the same held-out tasks for every arm, greedily; what is unknown is counted apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from renshu.chat import ChatFormat
from renshu.engines import Engine, Sampling
from renshu.envs import Environment
from renshu.evaluation.records import outcome_record
from renshu.evaluation.statistics import mcnemar, wilson
from renshu.rollout import collect
from renshu.types import Scored, Task, Trajectory

Progress = Callable[[int, int], None]  # tasks done, of all


@dataclass(frozen=True)
class Outcome:
    """How one task ended. success, reward: None where unknown; unknown is not zero."""

    task: str
    success: bool | None
    reward: float | None


@dataclass(frozen=True)
class Result:
    """The outcomes of one arm, in the order of the tasks."""

    arm: str
    outcomes: tuple[Outcome, ...]

    @property
    def success(self) -> float | None:
        """Share of solved tasks among those scored; None if none was."""
        known = [outcome.success for outcome in self.outcomes if outcome.success is not None]
        return fmean(known) if known else None

    def summary(self, base: Result | None = None) -> dict[str, Any]:
        """The arm as `summary.json` shows it: Wilson 95 %, exact McNemar against `base` on the same tasks."""
        known = [outcome.success for outcome in self.outcomes if outcome.success is not None]
        rewards = [outcome.reward for outcome in self.outcomes if outcome.reward is not None]
        interval = wilson(sum(known), len(known))
        return {
            "arm": self.arm,
            "success": self.success,
            "low": interval.low,
            "high": interval.high,
            "n": len(known),
            "unscored": len(self.outcomes) - len(known),
            "reward": fmean(rewards) if rewards else None,
            "p_vs_base": None if base is None else self.against(base),
        }

    def against(self, other: Result) -> float | None:
        """p of the exact McNemar test; None if no task was scored in both arms."""
        if [outcome.task for outcome in self.outcomes] != [outcome.task for outcome in other.outcomes]:
            raise ValueError(f"arms {other.arm!r} and {self.arm!r} were not measured on the same tasks")
        first = [outcome.success for outcome in other.outcomes]
        second = [outcome.success for outcome in self.outcomes]
        paired = any(a is not None and b is not None for a, b in zip(first, second, strict=True))
        return mcnemar(first, second).p if paired else None


def evaluate(
    engine: Engine,
    chat: ChatFormat,
    make_env: Callable[[], Environment],
    tasks: Sequence[Task],
    *,
    arm: str,
    max_tokens: int,
    at_once: int = 64,
    seed: int = 0,
    log: Path | None = None,
    progress: Progress | None = None,
) -> Result:
    """One greedy episode for every task. max_tokens: sampled tokens of an episode.

    at_once: episodes that run together. log: a file that gets one JSON line a task, as soon as it is known.
    """
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, stop_ids=chat.stop_ids)
    outcomes: list[Outcome] = []
    for start in range(0, len(tasks), at_once):
        chunk = tasks[start : start + at_once]
        groups = collect(engine, chat, make_env, chunk, group=1, sampling=sampling, seed=seed)
        trajectories = [group.trajectories[0] for group in groups]
        outcomes += [outcome_of(trajectory) for trajectory in trajectories]
        if log is not None:
            _append(log, trajectories)
        if progress is not None:
            progress(len(outcomes), len(tasks))
    return Result(arm, tuple(outcomes))


def outcome_of(trajectory: Trajectory) -> Outcome:
    score = trajectory.score
    if isinstance(score, Scored):
        return Outcome(trajectory.task.id, score.success, score.value)
    return Outcome(trajectory.task.id, None, None)


def _append(log: Path, trajectories: Sequence[Trajectory]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps(outcome_record(trajectory), ensure_ascii=False, default=str) for trajectory in trajectories
    ]
    with log.open("ab") as file:  # half a surrogate pair is written as JSON escapes it
        file.write("".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace"))
