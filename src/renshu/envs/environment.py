"""The environment: tools, reward, success and terminator of one task; a fresh object for every episode.

class Dice(Environment):
    system = "You roll dice."
    tasks = Tasks.generated(draw, train=1000, dev=100, test=400)

    def setup(self, task): ...            # the first user message
    @tool
    def roll(self, sides: int) -> int: ...  # only @tool methods can be called
    @success
    def solved(self) -> bool: ...         # the truth, reported on held-out tasks
    @reward(1.0, kind="outcome")
    def right(self) -> float: ...         # what is trained on
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from renshu.envs.moves import Moves
from renshu.envs.tasks import Tasks
from renshu.errors import ContractError
from renshu.rewards import Kind, Part, Rubric
from renshu.tools import ToolSpec, is_tool
from renshu.types import Message, Task, Trajectory

Script = Literal["solve", "hurried"]
F = TypeVar("F", bound=Callable[..., Any])


def reward(weight: float = 1.0, *, kind: Kind = "outcome") -> Callable[[F], F]:
    """Mark a method as a part of the reward: `(self)` or `(self, trajectory)` → 0..1, or None if not
    applicable. One of kind `process` may return a list with one of these for each of the model's turns.
    """

    def mark(function: F) -> F:
        function.__renshu_reward__ = (weight, kind)  # type: ignore[attr-defined]
        return function

    return mark


def success(function: F) -> F:
    """Mark the one method that says whether the task was solved: `(self)` or `(self, trajectory)` → bool."""
    function.__renshu_success__ = True  # type: ignore[attr-defined]
    return function


class Environment:
    """Base class. `task` is set before `setup`; all other state is the subclass's own."""

    system: ClassVar[str] = ""  # the system prompt; empty for none
    max_turns: ClassVar[int] = 8  # replies of the model in an episode
    tasks: ClassVar[Tasks | None] = None

    task: Task

    def setup(self, task: Task) -> str:
        """Prepare the episode and return the first user message."""
        raise self._lacks("setup", "what the user says first")

    def user(self, reply: Message) -> str | None:
        """What the user says to a reply without tool calls; None ends the episode."""
        return None

    def is_done(self) -> bool:
        """Whether the episode is over; asked after every turn's tool calls and after every user message."""
        return False

    def solve(self) -> Moves:
        """A gold solution, a generator of `think`, `call` and `say`; `yield` gives back the answer's text."""
        raise self._lacks("solve", "a gold solution")

    def hurried(self) -> Moves:
        """A mediocre way to act, for demonstrations that leave something to learn."""
        raise self._lacks("hurried", "a mediocre way to act")

    def _lacks(self, method: str, what: str) -> ContractError:
        return ContractError(f"{type(self).__name__} does not define {method}(): {what}")

    @classmethod
    def has_script(cls, name: Script) -> bool:
        """Whether the subclass offers `solve` or `hurried`."""
        return getattr(cls, name) is not getattr(Environment, name)

    @staticmethod
    def from_functions(
        *,
        tools: Sequence[Callable[..., Any]],
        rewards: Sequence[Callable[..., Any]],
        success: Callable[..., Any] | None = None,
        tasks: Tasks | None = None,
        system: str = "",
        max_turns: int = 8,
    ) -> type[Environment]:
        """An environment class from free functions.

        The field `prompt` of a task is the request: text, or messages that end in the user's. tools:
        functions with type hints and a docstring. rewards, success: functions of `task` and/or `trajectory`,
        weighed by `@reward` if it marks them (else weight 1, outcome), or reward functions in TRL's form.
        """
        from renshu.envs.functions import from_functions  # it builds on this class

        return from_functions(
            tools=tools, rewards=rewards, success=success, tasks=tasks, system=system, max_turns=max_turns
        )

    def opening(self, task: Task) -> tuple[Message, ...]:
        """Set the episode up: the system prompt, if any, and the first user message.

        Raises ContractError if `setup` does not return text.
        """
        self.task = task
        request = self.setup(task)
        if not isinstance(request, str) or not request.strip():
            raise ContractError(
                f"{type(self).__name__}.setup returned {request!r} for task {task.id}; "
                "return the first user message as text"
            )
        system = (Message("system", self.system),) if self.system else ()
        return (*system, Message("user", request))

    def tools(self) -> tuple[ToolSpec, ...]:
        """The allow-list: `@tool` methods in the order of their definition, those of base classes first."""
        return tuple(ToolSpec.from_function(method) for _, method in _marked(self, is_tool))

    def rubric(self) -> Rubric:
        """The `@reward` parts and the `@success` method, bound to this object."""
        parts = []
        for name, method in _marked(self, lambda f: hasattr(f, "__renshu_reward__")):
            weight, kind = method.__renshu_reward__
            parts.append(Part(name, weight, kind, _on_trajectory(method)))
        successes = dict(_marked(self, lambda f: hasattr(f, "__renshu_success__")))
        if len(successes) > 1:
            names = ", ".join(successes)
            raise ContractError(f"{type(self).__name__} has several @success methods ({names}); keep one")
        return Rubric(parts, next(map(_on_trajectory, successes.values()), None))


def _marked(environment: Environment, marked: Callable[[Any], bool]) -> Iterator[tuple[str, Any]]:
    """Names and bound methods of marked functions, in order of definition; an override keeps its place."""
    names = dict.fromkeys(name for owner in reversed(type(environment).__mro__) for name in vars(owner))
    for name in names:
        function = inspect.getattr_static(environment, name)
        if callable(function) and marked(function):
            yield name, getattr(environment, name)


def _on_trajectory(method: Callable[..., Any]) -> Callable[[Trajectory], Any]:
    """The method as a function of the trajectory, whether it wants one or not."""
    if inspect.signature(method).parameters:
        return method
    return lambda _: method()
