"""A benchmark: the same held-out tasks for every arm, greedily; what is unknown is counted apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from renshu.chat import ChatFormat
from renshu.engines import Engine, Sampling
from renshu.envs import Environment
from renshu.errors import DataError
from renshu.evaluation.outcome import Outcome, read_outcomes
from renshu.evaluation.records import outcome_record
from renshu.evaluation.samples import SampledResult, Tries
from renshu.evaluation.statistics import mcnemar, wilson
from renshu.jsonl import append_rows
from renshu.rollout import collect
from renshu.seeding import stable_hash
from renshu.types import Group, Task

Progress = Callable[[int, int], None]  # tasks done, of all
Collect = Callable[..., list[Group]]  # `rollout.collect`, or what does the same
MakeEnvironment = Callable[[], Environment]


@dataclass(frozen=True)
class Result:
    """The outcomes of one arm, in the order of the tasks.

    sampled: of further tries at a temperature, if there were any. seconds: wall clock of the greedy episodes,
    None if they were read from a file.
    """

    arm: str
    outcomes: tuple[Outcome, ...]
    sampled: SampledResult | None = None
    seconds: float | None = field(default=None, compare=False)

    @property
    def tasks(self) -> list[str]:
        return [outcome.task for outcome in self.outcomes]

    @property
    def successes(self) -> list[bool | None]:
        return [outcome.success for outcome in self.outcomes]

    @property
    def success(self) -> float | None:
        """Share of solved tasks among those scored; None if none was."""
        known = [success for success in self.successes if success is not None]
        return fmean(known) if known else None

    def first(self, n: int) -> Result:
        """The same of the first n tasks alone."""
        sampled = self.sampled and SampledResult(self.sampled.tries, self.sampled.outcomes[:n])
        return Result(self.arm, self.outcomes[:n], sampled)

    def summary(self, base: Result | None = None) -> dict[str, Any]:
        """The arm as `summary.json` shows it: Wilson 95 %, exact McNemar against `base` on the same tasks."""
        known = [success for success in self.successes if success is not None]
        rewards = [outcome.reward for outcome in self.outcomes if outcome.reward is not None]
        interval = wilson(sum(known), len(known))
        arm = {
            "arm": self.arm,
            "success": self.success,
            "low": interval.low,
            "high": interval.high,
            "n": len(known),
            "unscored": len(self.outcomes) - len(known),
            "reward": fmean(rewards) if rewards else None,
            "p_vs_base": None if base is None else self.against(base),
        }
        return arm if self.sampled is None else {**arm, "samples": self.sampled.summary()}

    def against(self, other: Result) -> float | None:
        """p of the exact McNemar test; None if no task was scored in both arms."""
        if self.tasks != other.tasks:
            raise ValueError(f"arms {other.arm!r} and {self.arm!r} were not measured on the same tasks")
        first, second = other.successes, self.successes
        paired = any(a is not None and b is not None for a, b in zip(first, second, strict=True))
        return mcnemar(first, second).p if paired else None


def evaluate(
    engine: Engine,
    chat: ChatFormat,
    make_env: MakeEnvironment,
    tasks: Sequence[Task],
    *,
    arm: str,
    max_tokens: int,
    at_once: int = 64,
    seed: int = 0,
    tries: Tries | None = None,
    log: Path | None = None,
    progress: Progress | None = None,
    collect: Collect = collect,
) -> Result:
    """One greedy episode for every task, and `tries` further ones. max_tokens: sampled tokens of an episode.

    at_once: episodes that run together. log: a file that gets one JSON line a task, as soon as it is known;
    sampled episodes go to a file of the same name in the folder `samples` beside it. collect: plays groups,
    e.g. a share of them in each of several processes.
    """
    play = partial(_play, partial(collect, engine, chat, make_env), tasks, at_once=at_once, progress=progress)
    sampling = partial(Sampling, max_tokens=max_tokens, stop_ids=chat.stop_ids)
    began = time.perf_counter()
    greedy = play(1, sampling(temperature=0.0), seed=seed, log=log)
    seconds = time.perf_counter() - began
    sampled = None
    if tries is not None:
        seed = stable_hash(seed, "samples")
        log = log and samples_log(log)
        outcomes = play(tries.k, sampling(temperature=tries.temperature), seed=seed, log=log)
        sampled = SampledResult(tries, tuple(outcomes))
    return Result(arm, tuple(outcome for (outcome,) in greedy), sampled, seconds)


def read_result(arm: str, log: Path, tries: Tries | None = None) -> Result:
    """What `evaluate` wrote into `log`, with the sampled episodes if `tries` says that there are some.

    Raises DataError if the file is damaged, or does not hold k tries of every task.
    """
    outcomes = tuple(read_outcomes(log))
    if tries is None:
        return Result(arm, outcomes)
    sampled = read_outcomes(samples_log(log))
    rows = [tuple(sampled[i : i + tries.k]) for i in range(0, len(sampled), tries.k)]
    wanted = [[outcome.task] * tries.k for outcome in outcomes]
    if [[outcome.task for outcome in row] for row in rows] != wanted:
        raise DataError(f"{samples_log(log)} does not hold {tries.k} tries of every task of {log.name}")
    return Result(arm, outcomes, SampledResult(tries, tuple(rows)))


def samples_log(log: Path) -> Path:
    """Where the sampled episodes of an arm are, whose greedy ones are in `log`."""
    return log.parent / "samples" / log.name


def _play(
    collect: Collect,
    tasks: Sequence[Task],
    group: int,
    sampling: Sampling,
    *,
    at_once: int,
    seed: int,
    log: Path | None,
    progress: Progress | None,
) -> list[tuple[Outcome, ...]]:
    """The outcomes of `group` episodes of every task."""
    found: list[tuple[Outcome, ...]] = []
    together = max(1, at_once // group)
    for start in range(0, len(tasks), together):
        chunk = tasks[start : start + together]
        groups = collect(chunk, group=group, sampling=sampling, seed=seed)
        records = [[outcome_record(trajectory) for trajectory in played.trajectories] for played in groups]
        found += [tuple(map(Outcome.of, tried)) for tried in records]
        if log is not None:
            append_rows(log, (record for tried in records for record in tried))
        if progress is not None:
            progress(len(found), len(tasks))
    return found
