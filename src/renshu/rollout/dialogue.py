"""One episode with a model behind an endpoint: messages, and tokens by the server's count alone."""

from __future__ import annotations

from typing import Any, NamedTuple

from renshu.engines.openai_chat import Answer, ChatModel, Usage, answer_of, written
from renshu.envs.environment import Environment
from renshu.envs.interaction import Interaction
from renshu.errors import ContextOverflow, InfrastructureError
from renshu.rollout.episode import failed
from renshu.types import Message, Stop, Task, Trajectory


class Spoken(NamedTuple):
    """An episode without tokens. usage: of all its turns; None if the server did not tell that of each."""

    trajectory: Trajectory
    usage: Usage | None


async def run_dialogue(
    environment: Environment, task: Task, model: ChatModel, *, max_tokens: int, temperature: float = 0.0
) -> Spoken:
    """Play one episode. max_tokens: what the model may sample in all its turns.

    Scored as `run_episode` scores: what the model caused as it stands, and what it did not is `Unscored`: an
    endpoint without an answer (ERROR, `infrastructure`), a dialogue that is too long for it (LENGTH,
    `context_overflow`). A reply that a content filter cut is the answer that was had. A server that tells no
    usage bounds each turn by max_tokens, since nobody counts their sum. Raises ConfigError, EngineError or
    ContractError where going on with other episodes would be of no use.
    """
    try:
        interaction = Interaction(environment, task)
    except InfrastructureError as error:
        return Spoken(failed(task, Stop.ERROR, f"infrastructure: {error}"), Usage(0, 0, 0))
    episode = _Dialogue(interaction, model, max_tokens, temperature)
    return Spoken(await episode.run(), episode.usage)


class _Dialogue:
    """The state of one episode while it runs."""

    def __init__(
        self, interaction: Interaction, model: ChatModel, max_tokens: int, temperature: float
    ) -> None:
        self.interaction, self.model, self.temperature = interaction, model, temperature
        self.budget = max_tokens
        self.wire: list[dict[str, Any]] = written(interaction.messages)
        self.usage: Usage | None = Usage(0, 0, 0)

    async def run(self) -> Trajectory:
        try:
            while True:
                outcome = await self._turn()
                if isinstance(outcome, Stop):
                    return self.interaction.finish(outcome)
        except ContextOverflow as error:
            return self.interaction.abandon(Stop.LENGTH, f"context_overflow: {error}")
        except InfrastructureError as error:
            return self.interaction.abandon(Stop.ERROR, f"infrastructure: {error}")

    async def _turn(self) -> Stop | None:
        """Ask for one reply and carry it out: why the episode ends, or None."""
        answer = await self.model.reply(
            self.wire, self.interaction.schemas, max_tokens=self.budget, temperature=self.temperature
        )
        self._count(answer.usage)
        if answer.cut:
            self.interaction.cut(answer.reply)
            return Stop.LENGTH
        outcome = await self.interaction.answer(answer.reply)
        if isinstance(outcome, Stop):
            return outcome
        self._read(answer, outcome)
        return Stop.LENGTH if self.budget <= 0 else None

    def _count(self, usage: Usage | None) -> None:
        self.usage = None if usage is None or self.usage is None else self.usage.plus(usage)
        self.budget -= 0 if usage is None else usage.sampled

    def _read(self, answer: Answer, messages: tuple[Message, ...]) -> None:
        """Append the reply and what the environment said to it; each attempt has one answer, in order."""
        self.wire.append(answer.wire)
        if answer.ids:
            pairs = zip(answer.ids, messages, strict=True)
            self.wire += [answer_of(identity, message) for identity, message in pairs]
        else:
            self.wire += written(messages)
