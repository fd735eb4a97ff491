"""One episode: an environment in dialogue with a session of an engine. The tokens are kept as they were
sampled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from renshu.chat import ChatFormat
from renshu.engines import Sampling, Session
from renshu.envs.environment import Environment
from renshu.envs.interaction import Interaction
from renshu.errors import ConfigError, ContextOverflow, ContractError, EngineError, InfrastructureError
from renshu.types import Message, Segment, Stop, Task, Trajectory, Unscored

Reopen = Callable[[Sequence[int]], Session]


@dataclass(frozen=True)
class Limits:
    """What bounds an episode beside its budget of sampled tokens, which is `Sampling.max_tokens`.

    turns: replies of the model; None leaves it to the environment. seconds: of wall clock, looked at between
        turns; a turn or tool that has begun is not broken off. It makes runs depend on the machine: None for
        exact repetition.
    """

    turns: int | None = None
    seconds: float | None = None


UNLIMITED = Limits()


async def run_episode(
    environment: Environment,
    task: Task,
    session: Session,
    chat: ChatFormat,
    sampling: Sampling,
    limits: Limits = UNLIMITED,
    reopen: Reopen | None = None,
) -> Trajectory:
    """Play one episode in `session`, which holds the prompt of this task and is closed at the end.

    `sampling.max_tokens` is the budget of the whole episode. What the policy caused is scored as it stands:
    an answer, too many turns (TURNS), a used-up budget or clock (LENGTH, TIMEOUT). What it did not is
    `Unscored`: a tool's answer that overflows the context (LENGTH, `context_overflow`), a failing machine,
    engine or environment (ERROR, `infrastructure`). `reopen` starts a new path when the template rewrites
    history (policies `fork` and `strip`). Raises ContractError if the environment breaks its contract.
    """
    try:
        interaction = Interaction(environment, task, limits.turns)
        if session.ids != chat.prompt(interaction.messages, interaction.schemas):
            raise ContractError(
                f"task {task.id}: the session does not hold the prompt that {type(environment).__name__} "
                "opens with; setup must depend on the task alone"
            )
        return await _Episode(interaction, session, chat, sampling, limits, reopen).run()
    except InfrastructureError as error:
        return failed(task, Stop.ERROR, f"infrastructure: {error}")
    finally:
        session.close()


def failed(task: Task, stop: Stop, reason: str) -> Trajectory:
    """An episode that could not begin."""
    return Trajectory(task, (), (), stop, Unscored(reason))


class _Episode:
    """The state of one episode while it runs."""

    def __init__(
        self,
        interaction: Interaction,
        session: Session,
        chat: ChatFormat,
        sampling: Sampling,
        limits: Limits,
        reopen: Reopen | None,
    ) -> None:
        self.interaction, self.session, self.chat = interaction, session, chat
        self.sampling, self.reopen = sampling, reopen
        self.budget = sampling.max_tokens
        self.deadline = None if limits.seconds is None else time.monotonic() + limits.seconds
        self.segments: list[Segment] = [Segment(tuple(session.ids))]
        self.forks: list[list[Segment]] = []

    async def run(self) -> Trajectory:
        try:
            while True:
                outcome = await self._turn()
                if isinstance(outcome, Stop):
                    return self.interaction.finish(outcome, self.segments, self.forks)
                self._read(outcome)
        except ContextOverflow as error:
            return self._abandon(Stop.LENGTH, f"context_overflow: {error}")
        except (InfrastructureError, EngineError) as error:
            return self._abandon(Stop.ERROR, f"infrastructure: {error}")
        finally:
            self.session.close()

    async def _turn(self) -> tuple[Message, ...] | Stop:
        """Sample one reply and carry it out: the messages to read next, or why the episode ends."""
        generated = await self.session.generate(replace(self.sampling, max_tokens=self.budget))
        self.segments.append(generated.segment)
        self.budget -= len(generated.segment.ids)
        reply = self.chat.parse(generated.segment.ids)
        if generated.finish == "length":
            self.interaction.cut(reply)  # its calls may be torn: none is run
            return Stop.LENGTH
        if self._late():
            self.interaction.cut(reply)
            return Stop.TIMEOUT
        outcome = await self.interaction.answer(reply)
        if isinstance(outcome, Stop):
            return outcome
        return Stop.TIMEOUT if self._late() else Stop.LENGTH if self.budget == 0 else outcome

    def _read(self, messages: tuple[Message, ...]) -> None:
        """Append what the environment said, and the next assistant header, to the path."""
        before = self.interaction.messages[: -len(messages)]
        advance = self.chat.advance(self.session.ids, before, messages, self.interaction.schemas)
        if not advance.fresh:
            self.session.extend(advance.ids)
            self.segments.append(Segment(tuple(advance.ids)))
            return
        if self.reopen is None:
            raise ConfigError(
                "the template rewrites history, which starts new paths: pass `reopen` to run_episode"
            )
        self.forks.append(self.segments)
        self.session.close()
        self.session = self.reopen(advance.ids)
        self.segments = [Segment(tuple(advance.ids))]

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def _abandon(self, stop: Stop, reason: str) -> Trajectory:
        return self.interaction.abandon(stop, reason, self.segments, self.forks)
