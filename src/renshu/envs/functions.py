"""An environment from free functions, for tasks whose tools need no state of an episode."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from renshu.envs.adapters.trl import call_reward, is_trl_reward, opening_of
from renshu.envs.environment import Environment
from renshu.envs.tasks import Tasks
from renshu.errors import ContractError
from renshu.rewards import Kind, Part, Rubric
from renshu.tools import ToolSpec
from renshu.types import Message, Task, Trajectory

Function = Callable[..., Any]
DEFAULT: tuple[float, Kind] = (1.0, "outcome")  # of rewards that @reward does not mark


def from_functions(
    *,
    tools: Sequence[Function],
    rewards: Sequence[Function],
    success: Function | None = None,
    tasks: Tasks | None = None,
    system: str = "",
    max_turns: int = 8,
    name: str = "FunctionEnvironment",
) -> type[Environment]:
    """An Environment class; see `Environment.from_functions`."""
    for function in (*rewards, *([success] if success else [])):
        _require_known_parameters(function)
    specs = tuple(ToolSpec.from_function(function) for function in tools)

    class FunctionEnvironment(Environment):
        def opening(self, task: Task) -> tuple[Message, ...]:
            self.task = task
            return opening_of(task.fields, self.system)

        def tools(self) -> tuple[ToolSpec, ...]:
            return specs

        def rubric(self) -> Rubric:
            return Rubric([_part(function) for function in rewards], success and _measure(success))

    members = {"system": system, "max_turns": max_turns, "tasks": tasks}
    judged_by = (*rewards, *([success] if success else []))  # for checks: the class has no such methods
    return type(name, (FunctionEnvironment,), {**members, "judged_by": judged_by})


def _part(function: Function) -> Part:
    weight, kind = getattr(function, "__renshu_reward__", DEFAULT)
    return Part(function.__name__, weight, kind, _measure(function))


def _measure(function: Function) -> Callable[[Trajectory], Any]:
    """A function of `task` and/or `trajectory`, or one in TRL's form, as a function of the trajectory."""
    if is_trl_reward(function):
        return lambda trajectory: call_reward(function, trajectory)
    wanted = inspect.signature(function).parameters
    return lambda trajectory: function(
        **{
            key: value
            for key, value in {"task": trajectory.task, "trajectory": trajectory}.items()
            if key in wanted
        }
    )


def _require_known_parameters(function: Function) -> None:
    unknown = set(inspect.signature(function).parameters) - {"task", "trajectory"}
    if unknown and not is_trl_reward(function):
        raise ContractError(
            f"{function.__name__} takes {', '.join(sorted(unknown))}; a reward or success function takes "
            "`task` and/or `trajectory`, or TRL's `completions` and columns"
        )
