"""Supervised dialogues for a warm-up, played by an environment's own scripts: some careful, the others
hurried.

A warm-up on gold alone leaves practice nothing to improve; one on a mixture shows the model both ways to act,
and practice selects the better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renshu.envs.environment import Environment, Script
from renshu.envs.interaction import play_through
from renshu.errors import ConfigError
from renshu.seeding import stable_hash
from renshu.types import Message, Task


@dataclass(frozen=True)
class Demonstration:
    """A dialogue to imitate: what the assistant says in `messages`, with `tools` as the template shows
    them.
    """

    task: Task
    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...]
    careful: bool


def demonstrations(
    environment: type[Environment], tasks: Sequence[Task], *, careful: float, seed: int
) -> list[Demonstration]:
    """One dialogue a task, in the tasks' order; the share `careful` of them by `solve`, the others by
    `hurried`.

    Which tasks are careful depends on `seed` and the tasks' ids. Raises ConfigError for a share outside 0..1
    or an environment without the scripts it asks for.
    """
    if not 0.0 <= careful <= 1.0:
        raise ConfigError(f"the careful share of demonstrations is {careful}; it must lie between 0 and 1")
    ranked = sorted(tasks, key=lambda task: stable_hash("demonstrations", seed, task.id))
    chosen = {task.id for task in ranked[: round(careful * len(tasks))]}
    scripts: dict[Script, bool] = {"solve": bool(chosen), "hurried": len(chosen) < len(tasks)}
    for script, needed in scripts.items():
        if needed and not environment.has_script(script):
            raise ConfigError(
                f"{environment.__name__} has no {script}(): its demonstrations cannot be played"
            )
    return [_demonstrate(environment(), task, task.id in chosen) for task in tasks]


def _demonstrate(environment: Environment, task: Task, careful: bool) -> Demonstration:
    script = environment.solve() if careful else environment.hurried()
    trajectory = play_through(environment, task, script)
    schemas = tuple(spec.schema for spec in environment.tools())
    return Demonstration(task, trajectory.messages, schemas, careful)
