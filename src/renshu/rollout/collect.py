"""Groups of episodes: every prompt is read once, forked for its group, and all groups run together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any

from renshu.chat import ChatFormat
from renshu.engines import Engine, Sampling, Session
from renshu.envs.environment import Environment
from renshu.envs.interaction import Interaction
from renshu.errors import ConfigError, ContextOverflow, InfrastructureError
from renshu.rollout.episode import UNLIMITED, Limits, Reopen, failed, run_episode
from renshu.seeding import stable_hash
from renshu.types import Group, Stop, Task, Trajectory

MakeEnvironment = Callable[[], Environment]


def collect(
    engine: Engine,
    chat: ChatFormat,
    make_env: MakeEnvironment,
    tasks: Sequence[Task],
    *,
    group: int,
    sampling: Sampling,
    limits: Limits = UNLIMITED,
    seed: int,
    step: int = 0,
) -> list[Group]:
    """`group` trajectories of every task, in the tasks' order.

    The random stream of a trajectory is named by seed, step, task id and slot, never by its place in the
    batch; a task that is given twice goes on counting its slots. A prompt that does not fit or a setup that
    fails leaves that group unscored. Raises ContractError if the environment breaks its contract.
    """
    if group < 1:
        raise ConfigError(f"a group has {group} episodes; it needs at least 1")
    episodes: list[Coroutine[Any, Any, Trajectory]] = []
    slots: Counter[str] = Counter()
    for task in tasks:
        first = slots[task.id]
        slots[task.id] += group
        seeds = [stable_hash(seed, step, task.id, slot) for slot in range(first, first + group)]
        try:
            sessions = _open(engine, chat, make_env(), task, seeds)
        except (ContextOverflow, InfrastructureError) as error:
            episodes += [_failed(task, error) for _ in seeds]
            continue
        for session, own in zip(sessions, seeds, strict=True):
            reopen = _reopener(engine, own)
            episodes.append(run_episode(make_env(), task, session, chat, sampling, limits, reopen))
    trajectories = engine.run(episodes)
    return [Group(task, tuple(trajectories[i * group : (i + 1) * group])) for i, task in enumerate(tasks)]


def _open(
    engine: Engine, chat: ChatFormat, environment: Environment, task: Task, seeds: Sequence[int]
) -> Sequence[Session]:
    """One session a seed, all behind the prompt of the task."""
    opening = Interaction(environment, task)
    root = engine.open(chat.prompt(opening.messages, opening.schemas), seed=seeds[0])
    sessions = root.fork(seeds)
    root.close()
    return sessions


def _reopener(engine: Engine, seed: int) -> Reopen:
    """Opens the further paths of one episode, each with its own random stream."""
    path = count(1)
    return lambda ids: engine.open(ids, seed=stable_hash(seed, "path", next(path)))


async def _failed(task: Task, error: Exception) -> Trajectory:
    if isinstance(error, ContextOverflow):
        return failed(task, Stop.LENGTH, f"context_overflow: prompt of task {task.id}: {error}")
    return failed(task, Stop.ERROR, f"infrastructure: {error}")
