"""What people bring from TRL: reward functions and `environment_factory` classes, unchanged (TRL 1.16's
rules).

Two things differ and cannot be otherwise. A reward function is called for one episode at a time, with lists
of one entry: one that compares completions of a batch sees no others. `trainer_state` is None.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from renshu.envs.environment import Environment
from renshu.envs.interaction import in_own_loop
from renshu.envs.tasks import Tasks
from renshu.errors import ContractError
from renshu.rewards import Part, Rubric, reward_list
from renshu.tools import ToolSpec
from renshu.types import Message, Task, Trajectory

RESERVED = ("prompt", "completion", "completion_ids")  # columns TRL does not pass on as they are


def is_trl_reward(function: Callable[..., Any]) -> bool:
    """Whether a function has the signature of TRL's reward functions: a parameter `completions`."""
    return "completions" in inspect.signature(function).parameters


def call_reward(
    function: Callable[..., Any],
    trajectory: Trajectory,
    environment: Any = None,
    column: Callable[[str, Any], list[Any]] = lambda _, value: [value],
) -> float | None:
    """The reward of one episode by a TRL reward function, sync or async.

    column: makes a column of one entry from its name and value. Raises ValueError if the function does not
    return a list of one finite number or None.
    """
    columns = {
        key: column(key, value) for key, value in trajectory.task.fields.items() if key not in RESERVED
    }
    prompt, completion = dialogue(trajectory)
    returned = function(
        prompts=[prompt],
        completions=[completion],
        completion_ids=[[i for segment in trajectory.segments[1:] for i in segment.ids]],
        **columns,
        trainer_state=None,
        log_extra=_ignore,
        log_metric=_ignore,
        environments=[environment],
    )
    if inspect.iscoroutine(returned):
        returned = in_own_loop(returned)
    return reward_list(function.__name__, returned, 1)[0]


def dialogue(trajectory: Trajectory) -> tuple[Any, Any]:
    """Prompt and completion as TRL shows them: texts for a textual prompt, else lists of messages."""
    messages = trajectory.messages
    start = next((i for i, message in enumerate(messages) if message.role == "assistant"), len(messages))
    if isinstance(trajectory.task.fields.get("prompt"), str):
        return trajectory.task["prompt"], "".join(
            _as_text(m) for m in messages[start:] if m.role == "assistant"
        )
    return [_as_dict(m) for m in messages[:start]], [_as_dict(m) for m in messages[start:]]


def opening_of(
    fields: Mapping[str, Any], system: str = "", observation: str | None = None
) -> tuple[Message, ...]:
    """The first messages from a `prompt` column (text or messages), `observation` appended to the last
    one.
    """
    prompt = fields.get("prompt") or ""
    rows: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    messages = [Message(row["role"], row["content"]) for row in rows]
    if system and messages[0].role != "system":
        messages.insert(0, Message("system", system))
    last = messages.pop()
    content = last.content + (observation or "")
    if last.role != "user" or not content.strip():
        raise ContractError(
            "the task gives no request: its `prompt` must end in a user message that is not empty"
        )
    return (*messages, Message("user", content))


def from_environment_factory(
    factory: Callable[[], Any],
    *,
    tasks: Tasks | None = None,
    rewards: Sequence[Callable[..., Any]] = (),
    success: Callable[[Any], bool] | None = None,
    system: str = "",
    max_turns: int = 8,
) -> type[Environment]:
    """An Environment from a class with `reset(**row)`, public typed methods as tools, and maybe
    `get_reward()`.

    Tools are listed alphabetically, as TRL lists them. TRL knows no success: `success` is asked about the
    object at the end; without it, a full reward (`get_reward() >= 1`) is success.
    """
    name = getattr(factory, "__name__", "environment")
    own_reward = getattr(factory, "get_reward", None)
    judged_by = (*rewards, *filter(None, (success, own_reward)))  # for checks
    settings = {"system": system, "max_turns": max_turns, "tasks": tasks, "judged_by": judged_by}

    class FactoryEnvironment(Environment):
        def opening(self, task: Task) -> tuple[Message, ...]:
            self.task, self.inner = task, factory()
            observation = self.inner.reset(**task.fields)
            return opening_of(task.fields, self.system, observation)

        def tools(self) -> tuple[ToolSpec, ...]:
            inner = getattr(self, "inner", None) or factory()
            return tuple(
                ToolSpec.from_function(getattr(inner, method)) for method in _tool_names(type(inner))
            )

        def rubric(self) -> Rubric:
            inner = getattr(self, "inner", None) or factory()
            parts = [_part(function, inner) for function in rewards]
            if not hasattr(inner, "get_reward"):
                return Rubric(parts, success and (lambda _: success(self.inner)))
            own = Part(name, 1.0, "outcome", lambda _: _own_reward(self.inner))
            solved = success or (lambda inner: (_own_reward(inner) or 0.0) >= 1.0)
            return Rubric([*parts, own], lambda _: solved(self.inner))

    return type(name, (FactoryEnvironment,), {**settings, "__doc__": factory.__doc__})


def _tool_names(owner: type) -> list[str]:
    members = inspect.getmembers(owner, predicate=inspect.isfunction)
    return [name for name, _ in members if not name.startswith("_") and name not in ("reset", "get_reward")]


def _part(function: Callable[..., Any], inner: Any) -> Part:
    return Part(
        function.__name__, 1.0, "outcome", lambda trajectory: call_reward(function, trajectory, inner)
    )


def _own_reward(inner: Any) -> Any:
    reward = inner.get_reward()
    return in_own_loop(reward) if inspect.iscoroutine(reward) else reward


def _as_dict(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        row["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.reasoning is not None:
        row["reasoning_content"] = message.reasoning
    if message.name:
        row["name"] = message.name
    return row


def _as_text(message: Message) -> str:
    thought = f"<think>\n{message.reasoning}\n</think>\n\n" if message.reasoning else ""
    return thought + message.content


def _ignore(*_: Any) -> None:
    """TRL's `log_extra` and `log_metric`, which only feed its own completions table."""
