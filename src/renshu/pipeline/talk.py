"""A conversation of a person with a model, which may call the tools of an environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from renshu.engines import Sampling
from renshu.envs import Environment, Interaction
from renshu.pipeline.agent import Agent
from renshu.types import Message, Stop, Task

Ask = Callable[[], str | None]  # the person's next message; None ends the conversation
Show = Callable[[Message], None]  # called for every reply and every answer of a tool


class Bare(Environment):
    """No tools and no task: only a person."""

    def opening(self, task: Task) -> tuple[Message, ...]:
        return (Message("user"),)


def talk(
    agent: Agent, environment: type[Environment], task: Task, sampling: Sampling, ask: Ask, show: Show
) -> Stop:
    """Play `environment` with a person in the place of its user; returns why the conversation ended.

    Tools work on `task`. An empty first message stands for the task's own request.
    """
    with_person = _with_person(environment, ask)
    (stop,) = agent.engine.run([_talk(agent, with_person, task, sampling, show)])
    agent.engine.refresh()
    return stop


async def _talk(agent: Agent, environment: Environment, task: Task, sampling: Sampling, show: Show) -> Stop:
    interaction = Interaction(environment, task)
    tools = interaction.schemas
    session = agent.engine.open(agent.chat.prompt(interaction.messages, tools), seed=0)
    while True:
        generated = await session.generate(sampling)
        reply = agent.chat.parse(generated.segment.ids)
        show(reply.message)
        if generated.finish == "length":
            return Stop.LENGTH
        said = len(interaction.messages) + 1  # the history with this reply
        outcome = await interaction.answer(reply)
        if isinstance(outcome, Stop):
            return outcome
        for message in outcome:
            if message.role == "tool":
                show(message)
        advance = agent.chat.advance(session.ids, interaction.messages[:said], outcome, tools)
        if advance.fresh:
            session.close()
            session = agent.engine.open(advance.ids, seed=0)
        else:
            session.extend(advance.ids)


def _with_person(environment: type[Environment], ask: Ask) -> Environment:
    class WithPerson(environment):  # type: ignore[misc,valid-type]  # a base class known only at run time
        max_turns: ClassVar[int] = 1_000_000  # a person ends the conversation, not a count

        def opening(self, task: Task) -> tuple[Message, ...]:
            *before, request = super().opening(task)
            return (*before, replace(request, content=ask() or request.content))

        def user(self, reply: Message) -> str | None:
            return ask()

    return WithPerson()
