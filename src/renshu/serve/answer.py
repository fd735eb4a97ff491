"""Requests → answers: coroutines for the engine's drive. The prompt, the stop ids and the reading of the
reply are those of training, by the same `ChatFormat`.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from renshu.chat import ChatFormat
from renshu.chat.wire import with_ids
from renshu.engines import Engine, Generated, Session
from renshu.errors import TemplateError
from renshu.seeding import stable_hash
from renshu.serve.paths import Opening, Paths
from renshu.serve.refusals import Refusal
from renshu.serve.request import ChatRequest
from renshu.serve.turn import Delta, Tell, Turn
from renshu.types import Message

Finish = Literal["stop", "length", "tool_calls"]
LONGEST_TOKEN = 128  # characters: no text has fewer tokens than this makes of it


@dataclass(frozen=True)
class Choice:
    """One answer. tokens: each sampled token as (id, log-prob)."""

    message: Message
    finish: Finish
    tokens: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Answer:
    """All choices of a request. prompt_tokens: of the prompt, which is counted once."""

    prompt_tokens: int
    choices: tuple[Choice, ...]

    @property
    def completion_tokens(self) -> int:
        return sum(len(choice.tokens) for choice in self.choices)


Record = Callable[[Opening, Generated, Message], None]  # the prompt, what was sampled behind it, and its text


class Answerer:
    """Answers requests with one model. record: told every turn that was sampled, on the engine's thread."""

    def __init__(self, chat: ChatFormat, engine: Engine, record: Record | None = None) -> None:
        self.chat, self.engine, self.record = chat, engine, record
        self.paths = Paths(chat)

    async def answer(self, request: ChatRequest, tell: Tell | None = None) -> Answer:
        """All choices, sampled together. Raises Refusal.

        `tell` gets an empty delta once the prompt is accepted, then the content as it grows.
        """
        opening, sessions = self._open(request)
        try:
            if tell is not None:
                tell(Delta(0))  # the prompt is accepted
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._choice(request, opening, session, number, tell))
                    for number, session in enumerate(sessions)
                ]
            return Answer(len(opening.ids), tuple(task.result() for task in tasks))
        finally:
            for session in sessions:
                session.close()

    def _open(self, request: ChatRequest) -> tuple[Opening, list[Session]]:
        context = self.engine.context
        if request.sampling.max_tokens > context:
            text = f"max_tokens is {request.sampling.max_tokens}: the model's context has {context} tokens"
            raise Refusal(400, text, param="max_tokens")
        said = sum(len(message.content) for message in request.messages) + len(json.dumps(request.tools))
        if len(request.messages) > context or said > context * LONGEST_TOKEN:  # not worth rendering
            raise _too_long(f"{len(request.messages)} messages of {said} characters", context)
        try:
            opening = self.paths.open(request.messages, request.tools)
        except TemplateError as error:
            raise Refusal(400, f"messages: the model's template refuses them: {error}") from None
        if len(opening.ids) >= context:
            raise _too_long(f"{len(opening.ids)} tokens", context)
        seed = secrets.randbits(32) if request.seed is None else request.seed
        seeds = [stable_hash(seed, number) for number in range(request.choices)]
        return opening, [self.engine.open(opening.ids, seed=seed) for seed in seeds]

    async def _choice(
        self, request: ChatRequest, opening: Opening, session: Session, number: int, tell: Tell | None
    ) -> Choice:
        turn = Turn(self.chat, number, request.stops, tell)
        generated = await session.generate(request.sampling, turn.watch)
        torn = generated.finish != "stop" or turn.stopped_at is not None
        sampled = turn.finish(torn=torn).message
        message = with_ids(sampled)
        if not request.calls:
            message = replace(message, tool_calls=())
        elif request.single:
            message = replace(message, tool_calls=message.tool_calls[:1])
        if not torn and len(message.tool_calls) == len(sampled.tool_calls):
            told = [*request.messages, message]
            self.paths.keep(told, request.tools, opening, sampled, session.ids)
        if self.record is not None:
            self.record(opening, generated, sampled)
        turn.show_rest(message)
        return Choice(message, _finish(message, generated, turn), tuple(turn.tokens))


def _too_long(length: str, context: int) -> Refusal:
    text = f"the prompt has {length}: the model's context has {context} tokens"
    return Refusal(400, text, code="context_length_exceeded", param="messages")


def _finish(message: Message, generated: Generated, turn: Turn) -> Finish:
    if message.tool_calls:
        return "tool_calls"
    return "stop" if generated.finish == "stop" or turn.stopped_at is not None else "length"
