"""The arm that training must beat: solved dialogues in the prompt instead of trained weights."""

from __future__ import annotations

from collections.abc import Sequence

from renshu.envs import Environment, demonstrations
from renshu.types import Message, Task


def few_shot_arm(environment: type[Environment], shots: int, seed: int) -> type[Environment]:
    """The environment as the arm `few-shot` plays it: opened by the first `shots` training tasks, solved.

    Raises ConfigError if the environment has no `solve`, DataError if it has no training tasks.
    """
    assert environment.tasks is not None
    shown = environment.tasks.split("train")[:shots]
    return with_examples(environment, solved_dialogues(environment, shown, seed))


def solved_dialogues(
    environment: type[Environment], tasks: Sequence[Task], seed: int = 0
) -> tuple[Message, ...]:
    """The gold solutions of `tasks`, one after another, without the system prompt.

    Raises ConfigError if the environment has no `solve`.
    """
    shown = demonstrations(environment, tasks, careful=1.0, seed=seed)
    return tuple(message for demo in shown for message in demo.messages if message.role != "system")


def with_examples(environment: type[Environment], examples: Sequence[Message]) -> type[Environment]:
    """The environment, its episodes opened by `examples` between the system prompt and the first request."""

    class FewShot(environment):  # type: ignore[misc,valid-type]  # a base class known only at run time
        def opening(self, task: Task) -> tuple[Message, ...]:
            *system, request = super().opening(task)
            return (*system, *examples, request)

    FewShot.__name__ = environment.__name__
    return FewShot
