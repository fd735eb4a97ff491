"""Supervised dialogues for a warm-up, played by an environment's own scripts: some careful, the others
hurried.

A warm-up on gold alone leaves practice nothing to improve; one on a mixture shows the model both ways to act,
and practice selects the better one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renshu.envs.environment import Environment, Script
from renshu.envs.interaction import play_through
from renshu.errors import ConfigError
from renshu.seeding import stable_hash
from renshu.types import Message, Scored, Task, ToolCall, Trajectory


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


def demonstration_row(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], trajectory: Trajectory | None = None
) -> dict[str, Any]:
    """A dialogue as a line of the file that `sft.data` names: `{"messages": [...], "tools": [...]}` in
    OpenAI's shape, arguments as objects. With a trajectory also its task, success and reward.
    """
    row: dict[str, Any] = {"messages": _records(messages), "tools": list(tools)}
    if trajectory is not None:
        score = trajectory.score if isinstance(trajectory.score, Scored) else None
        row["task"] = trajectory.task.id
        row["success"] = None if score is None else score.success
        row["reward"] = None if score is None else score.value
    return row


def _records(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages in OpenAI's shape. Calls are numbered, so that each answer names the call it belongs to."""
    records: list[dict[str, Any]] = []
    waiting: list[str] = []  # ids of calls that have no answer yet
    count = 0
    for message in messages:
        record: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.reasoning is not None:
            record["reasoning"] = message.reasoning
        if message.tool_calls:
            waiting = [f"call_{count + i}" for i in range(len(message.tool_calls))]
            count += len(waiting)
            record["tool_calls"] = [
                _call_record(call, id) for call, id in zip(message.tool_calls, waiting, strict=True)
            ]
        if message.role == "tool" and waiting:
            record["tool_call_id"] = waiting.pop(0)
        if message.name is not None:
            record["name"] = message.name
        records.append(record)
    return records


def _call_record(call: ToolCall, id: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
