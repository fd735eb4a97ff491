"""The fake engine: replies from a function or a list, to test everything above engines without a model."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from renshu.engines.driver import Driver, Request, TokenSession
from renshu.engines.protocol import EngineStats, Session
from renshu.errors import EngineError

T = TypeVar("T")
Reply = Sequence[int]


class ScriptedSession(TokenSession):
    """A session of the fake."""

    def __init__(self, engine: ScriptedEngine, ids: Sequence[int], seed: int) -> None:
        super().__init__(engine, ids, seed)
        self._engine = engine

    def fork(self, seeds: Sequence[int]) -> list[Session]:
        self.require_open()
        return [ScriptedSession(self._engine, self.ids, seed) for seed in seeds]


class ScriptedEngine:
    """Says what it is told to say; one reply per turn, log-probs 0 (the script is certain).

    replies: a function from all ids of the session to the ids of the next turn, or an iterable of turns,
    taken in session order. A turn is cut after its first stop id, at the budget and at the context.
    """

    def __init__(
        self, replies: Callable[[Sequence[int]], Reply] | Iterable[Reply], *, context: int = 4096
    ) -> None:
        self.context = context
        self.stats = EngineStats()
        self.driver: Driver[ScriptedSession] = Driver(self._step, self.stats)
        if callable(replies):
            self._reply = replies
        else:
            script: Iterator[Reply] = iter(replies)
            self._reply = lambda ids: _next(script, len(ids))

    def open(self, ids: Sequence[int], *, seed: int) -> ScriptedSession:
        return ScriptedSession(self, ids, seed)

    def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        return self.driver.run(episodes)

    def refresh(self) -> None:
        """Nothing is cached."""

    def _step(self, requests: list[Request[ScriptedSession]]) -> None:
        for request in requests:
            reply = self._reply(tuple(request.session.ids))
            if not reply:
                raise EngineError(f"the script answered {len(request.session.ids)} ids with no token at all")
            self.stats.computed += request.history - 1
            for token in reply:
                request.add(token, 0.0)
                self.stats.computed += 1
                if request.done:
                    break
            request.done = True


def _next(script: Iterator[Reply], history: int) -> Reply:
    try:
        return next(script)
    except StopIteration:
        raise EngineError(
            f"the script has no reply left for a session of {history} ids: add one, or pass a function"
        ) from None
