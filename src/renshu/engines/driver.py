"""The loop every engine shares: let ready episodes run until they wait, then one step for all that wait."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, Protocol, TypeVar

from renshu.engines.protocol import EngineStats, Generated, Sampling, Watch
from renshu.errors import ContextOverflow, EngineError
from renshu.types import Segment

T = TypeVar("T")
S = TypeVar("S", bound="TokenSession")


class Request(Generic[S]):
    """One turn being sampled: what is asked, what was sampled so far, who waits for it."""

    def __init__(
        self, session: S, sampling: Sampling, future: asyncio.Future[Generated], watch: Watch | None = None
    ) -> None:
        self.session = session
        self.sampling = sampling
        self.future = future
        self.watch = watch
        self.history = len(session.ids)
        self.budget = min(sampling.max_tokens, session.context - self.history)
        self.logprobs: list[float] = []
        self.done = self.budget == 0

    def add(self, token: int, logprob: float) -> None:
        """Append one sampled token to the session; sets `done` at a stop id, at the end of the budget, or
        when the watcher says so.
        """
        if math.isnan(logprob):
            raise EngineError(
                f"the model's logits after {len(self.session.ids)} tokens are not numbers (NaN): "
                "look for exploded weights or an overflow of float16"
            )
        self.session.ids.append(token)
        self.logprobs.append(logprob)
        ended = self.watch is not None and self.watch(token, logprob)
        self.done = ended or token in self.sampling.stop_ids or len(self.logprobs) == self.budget

    def result(self) -> Generated:
        ids = tuple(self.session.ids[self.history :])
        stopped = bool(ids) and ids[-1] in self.sampling.stop_ids
        segment = Segment(ids=ids, sampled=True, logprobs=tuple(self.logprobs))
        return Generated(segment=segment, finish="stop" if stopped else "length")


class Driver(Generic[S]):
    """Runs episodes on an event loop. `step` advances all waiting requests, in session order, by some tokens.

    An episode may start tasks of its own on the loop, at any time: what they generate joins the next step.

    Deterministic as long as episodes await nothing but `generate`: requests are served, and episodes woken,
    in the order in which their sessions were opened. Episodes that await anything else hold nobody up.
    """

    def __init__(
        self,
        step: Callable[[list[Request[S]]], None],
        stats: EngineStats,
        around: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._step = step
        self._stats = stats
        self._around = around  # entered once for a whole run
        self._waiting: list[Request[S]] = []
        self._awake: asyncio.Event | None = None
        self._opened = 0

    def next_number(self) -> int:
        """The number of a new session."""
        self._opened += 1
        return self._opened

    def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """All results in order; the first error in order is raised after the others were cancelled."""
        if self._awake is not None:
            for episode in episodes:
                episode.close()
            raise EngineError("this engine is already running: start all episodes with one call of run()")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._drive(episodes))
        with ThreadPoolExecutor(1) as pool:  # inside a notebook's loop: a loop of our own in a thread
            return pool.submit(asyncio.run, self._drive(episodes)).result()

    async def submit(self, session: S, sampling: Sampling, watch: Watch | None = None) -> Generated:
        """Wait until a turn of `session` is sampled; `watch` is told every token as it comes."""
        if self._awake is None:
            raise EngineError("generate() only works in an episode: pass the coroutine to engine.run([...])")
        if any(request.session is session for request in self._waiting):
            raise EngineError("this session is already generating: fork it to sample two turns at once")
        request = Request(session, sampling, asyncio.get_running_loop().create_future(), watch)
        self._waiting.append(request)
        self._waiting.sort(key=lambda waiting: waiting.session.number)
        self._awake.set()
        try:
            return await request.future
        finally:
            if request in self._waiting:  # cancelled: what was sampled so far stays in the session
                self._waiting.remove(request)

    async def _drive(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        self._awake = asyncio.Event()
        tasks = [asyncio.ensure_future(episode) for episode in episodes]
        for task in tasks:
            task.add_done_callback(lambda _: self._awake.set() if self._awake else None)
        try:
            with self._around():
                await self._advance(tasks)
            for task in tasks:
                if task.done() and (error := task.exception()):
                    raise error
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._waiting.clear()
            self._awake = None

    async def _advance(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        assert self._awake is not None
        while True:
            await self._settle(tasks)
            if any(task.done() and task.exception() for task in tasks):
                return
            if self._waiting:
                self._serve()
            elif all(task.done() for task in tasks):
                return
            else:  # everybody waits for something outside, such as an async tool
                self._awake.clear()
                await self._awake.wait()

    async def _settle(self, tasks: Sequence[asyncio.Future[Any]]) -> None:
        """Give episodes turns of the loop until none has moved for three: a few, for tasks within tasks."""
        before, quiet = -1, 0
        while quiet < 3:
            await asyncio.sleep(0)
            now = len(self._waiting) + sum(task.done() for task in tasks)
            quiet = quiet + 1 if now == before else 0
            before = now

    def _serve(self) -> None:
        self._waiting = [request for request in self._waiting if not request.future.cancelled()]
        unfinished = [request for request in self._waiting if not request.done]
        if unfinished:
            self._step(unfinished)
        for request in [request for request in self._waiting if request.done]:
            self._waiting.remove(request)
            self._stats.count(history=request.history, sampled=len(request.logprobs))
            request.future.set_result(request.result())


class DrivenEngine(Protocol):
    """What a session needs of its engine."""

    context: int
    driver: Driver[Any]


class TokenSession:
    """What sessions of all engines share: their tokens, the context limit, a private random stream."""

    def __init__(self, engine: DrivenEngine, ids: Sequence[int], seed: int) -> None:
        self.ids: list[int] = []
        self.context = engine.context
        self.random = random.Random(seed)
        self.number = engine.driver.next_number()  # order of opening: the order of service
        self._driver = engine.driver
        self._closed = False
        if not ids:
            raise EngineError("a session needs at least one token to start from: the prompt is empty")
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Append foreign tokens. Raises ContextOverflow, and then appends nothing."""
        self.require_open()
        if len(self.ids) + len(ids) > self.context:
            raise ContextOverflow(
                f"{len(self.ids)} tokens and {len(ids)} more do not fit into the context of {self.context}: "
                "shorten the prompt or the tools' answers, or take a model with a longer context"
            )
        self.ids.extend(ids)

    async def generate(self, sampling: Sampling, watch: Watch | None = None) -> Generated:
        """Sample one turn and append it; to be awaited inside the engine's `run`."""
        self.require_open()
        return await self._driver.submit(self, sampling, watch)

    def close(self) -> None:
        self._closed = True

    def require_open(self) -> None:
        """Raises EngineError after `close`."""
        if self._closed:
            raise EngineError("this session is closed: open a new one")
