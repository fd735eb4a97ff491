"""A dry run: a few groups sampled as training would, and what they would teach."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from renshu.chat import ChatFormat
from renshu.check.findings import Finding, found
from renshu.engines import Engine, Sampling
from renshu.envs.environment import Environment
from renshu.rollout import Limits, collect, rollout_metrics
from renshu.types import Group, Row, Scored, Task, Trajectory, row_of


@dataclass(frozen=True)
class Span:
    """A stretch of decoded tokens; trained: whether the loss is taken on them."""

    text: str
    trained: bool


@dataclass(frozen=True)
class Sample:
    """One row that would be trained on, decoded. about: what it is, in words."""

    about: str
    spans: tuple[Span, ...]
    tokens: int
    trained: int


@dataclass(frozen=True)
class DryRun:
    """What was sampled. metrics: as a step's, of all episodes; samples: rows that would be trained on.

    first: whether practice would begin with the model as it is, without a stage before it.
    """

    tasks: int
    group: int
    seconds: float
    metrics: dict[str, float]
    first: bool
    samples: list[Sample] = field(default_factory=list)


def rehearse(
    engine: Engine,
    chat: ChatFormat,
    environment: type[Environment],
    tasks: Sequence[Task],
    *,
    group: int,
    sampling: Sampling,
    limits: Limits,
    seed: int,
    first: bool,
) -> DryRun:
    """Sample `group` episodes of each task, as the first step of practice would; the model stays as it is."""
    began = time.perf_counter()
    groups = collect(
        engine, chat, environment, tasks, group=group, sampling=sampling, limits=limits, seed=seed
    )
    seconds = time.perf_counter() - began
    shown = _telling(groups)
    samples = [] if shown is None else [sample_of(chat, row_of(shown.segments), _about(shown))]
    return DryRun(len(tasks), group, round(seconds, 2), rollout_metrics(groups), first, samples)


def sample_of(chat: ChatFormat, row: Row, about: str) -> Sample:
    """The row as text, cut where training begins and ends."""
    spans: list[Span] = []
    start = 0
    for end in range(1, len(row.ids) + 1):
        if end == len(row.ids) or row.trained[end] != row.trained[start]:
            text = chat.tokenizer.decode(
                list(row.ids[start:end]), skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
            spans.append(Span(text, row.trained[start]))
            start = end
    return Sample(about, tuple(spans), len(row.ids), sum(row.trained))


def check_dry_run(run: DryRun, tools: bool) -> Iterator[Finding]:
    """What the numbers say about the practice that would follow. tools: whether there are any."""
    metrics = run.metrics
    where = f"dry run of {run.tasks} × {run.group} episodes"
    if not run.first:
        where += ", without the stages before it"
    silent = 1.0 - metrics.get("groups/spread", 0.0)
    weight: Any = None if run.first else "note"
    if silent == 1.0:
        yield found("no_signal", where, "in no group do rewards differ", weight)
    elif silent > 0.5:
        yield found("little_signal", where, f"in {silent:.0%} of the groups all rewards are equal")
    if (cut := metrics.get("tokens/clipped", 0.0)) > 0.2:
        yield found("truncated", where, f"{cut:.0%} of the episodes are cut by the token budget", weight)
    if unscored := metrics.get("unscored", 0):
        causes = ", ".join(name.removeprefix("unscored/") for name in metrics if name.startswith("unscored/"))
        what = f"{unscored:.0f} of {metrics['rollouts']:.0f} episodes are unscored ({causes})"
        yield found("dry_unscored", where, what, "error" if unscored == metrics["rollouts"] else None)
    calls = metrics.get("calls/mean", 0.0)
    failed = sum(metrics.get(f"{name}/mean", 0.0) for name in ("bad_calls", "tool_errors", "timeouts"))
    if calls and failed > 0.5 * calls:
        yield found("calls_fail", where, f"{failed / calls:.0%} of the calls fail")
    if tools and not calls:
        yield found("never_calls", where, "the model calls no tool at all")


def _telling(groups: Sequence[Group]) -> Trajectory | None:
    """The episode to show: the best that was scored, else any that has tokens."""
    episodes = [episode for group in groups for episode in group.trajectories if episode.segments]
    return max(episodes, key=_worth, default=None)


def _worth(episode: Trajectory) -> float:
    return episode.score.value if isinstance(episode.score, Scored) else float("-inf")


def _about(episode: Trajectory) -> str:
    earned = f"reward {episode.score.value:g}" if isinstance(episode.score, Scored) else "unscored"
    return f"an episode of practice: task {episode.task.id}, {episode.stop}, {earned}"
