"""A trained agent in Python: it replies to dialogues and plays episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from renshu.chat.wire import as_in_training, read_messages, read_tools, with_ids
from renshu.engines import Sampling, Session
from renshu.envs import Environment, Interaction
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.environments import tasks_from
from renshu.pipeline.finished import Target, environment_for, find_target
from renshu.rollout.episode import run_episode
from renshu.tools import ToolSpec
from renshu.types import Message, Task, Trajectory


def load_agent(name: str | Path, *, device: str = "auto") -> LoadedAgent:
    """The agent that a run has kept, or a model by folder or name, ready for use.

    Of a run that was broken off it is the best so far; `LoadedAgent.note` then says so. Loading runs none of
    the environment's code. Raises a RenshuError if nothing was kept.
    """
    target = find_target(str(name))
    settings = target.model.model_copy(update={"device": device})
    return LoadedAgent(build_agent(settings, target.base, target.weights), target)


class LoadedAgent:
    """A model with its chat format, the one it was trained with. Not to be used by two threads at once."""

    def __init__(self, agent: Agent, target: Target) -> None:
        self.agent, self.note = agent, target.note
        self._target = target

    def reply(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any] | Callable[..., Any]] = (),
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Message:
        """The next message of a dialogue: text, calls (each with an id), or both.

        messages: Messages, or dicts in OpenAI's shape. tools: OpenAI schemas, or functions with type hints.
        temperature: 0 is greedy; else `seed` decides. Raises DataError for what is no dialogue,
        ContextOverflow for one that is too long.
        """
        dialogue = as_in_training(read_messages(messages))
        schemas = read_tools([_schema(tool) for tool in tools])
        session = self.agent.engine.open(self.agent.chat.prompt(dialogue, schemas), seed=seed)
        try:
            (generated,) = self.agent.engine.run([session.generate(self._sampling(max_tokens, temperature))])
        finally:
            session.close()
        return with_ids(self.agent.chat.parse(generated.segment.ids).message)

    def solve(
        self,
        task: Task | Mapping[str, Any] | int = 0,
        environment: type[Environment] | None = None,
        *,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Trajectory:
        """Play one episode with the environment's tools: its messages, why it ended, and its score.

        task: a Task, its fields, or the number of a test task. environment: default is the run's own, whose
        code is run. max_tokens: sampled in the whole episode. Raises a RenshuError as training does.
        """
        played = environment or environment_for(self._target, None)
        problem = _task(played, task)
        opening = Interaction(played(), problem)
        engine, prompt = self.agent.engine, self.agent.chat.prompt(opening.messages, opening.schemas)

        def reopen(ids: Sequence[int]) -> Session:
            return engine.open(ids, seed=seed)

        sampling = self._sampling(max_tokens, temperature)
        (trajectory,) = engine.run(
            [run_episode(played(), problem, reopen(prompt), self.agent.chat, sampling, reopen=reopen)]
        )
        return trajectory

    def _sampling(self, max_tokens: int, temperature: float) -> Sampling:
        return Sampling(max_tokens, temperature, stop_ids=self.agent.chat.stop_ids)


def _schema(tool: Mapping[str, Any] | Callable[..., Any]) -> Mapping[str, Any]:
    if isinstance(tool, Mapping):
        return tool if "function" in tool else {"type": "function", "function": tool}
    return ToolSpec.from_function(tool).schema


def _task(environment: type[Environment], task: Task | Mapping[str, Any] | int) -> Task:
    if isinstance(task, Task):
        return task
    if isinstance(task, int):
        return tasks_from(environment, "test", task, 1)[0]
    return Task("given/0", dict(task))
