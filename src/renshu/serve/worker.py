"""An engine on a thread of its own. Whatever is submitted while it decodes joins at the next step."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, TypeVar

from renshu.engines import Engine
from renshu.errors import EngineError

T = TypeVar("T")
Make = Callable[[], Coroutine[Any, Any, Any]]


class Worker:
    """Runs coroutines inside the engine's drive, all on one thread, from `start` until `close`.

    If a step fails, all that is running fails with an EngineError, and the engine starts afresh.
    """

    def __init__(self, engine: Engine, at_once: int = 64) -> None:
        """at_once: coroutines that run together; the others wait in the order in which they came."""
        self.engine = engine
        self.at_once = at_once
        self._thread = threading.Thread(target=self._work, name="renshu-engine", daemon=True)
        self._guard = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the drive, while it takes work
        self._pending: set[Future[Any]] = set()
        self._early: list[tuple[Make, Future[Any]]] = []  # submitted while there was no drive to take them
        self._closing = self._resting = False
        self._idle = True

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine, made on the thread, among the others; cancelling the future cancels it.

        It never blocks: before `start`, and while the engine rests, what is submitted waits. Raises
        EngineError after `close`.
        """
        future: Future[T] = Future()
        with self._guard:
            if self._closing:
                raise EngineError("this server is shutting down")
            self._pending.add(future)
            if self._loop is None or self._resting:
                self._early.append((make, future))
            else:
                self._loop.call_soon_threadsafe(self._begin, make, future)
        return future

    def rest(self) -> None:
        """Finish what is running, and leave what is submitted from now on until `wake`."""
        with self._guard:
            self._resting = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._end.set)
            self._guard.wait_for(lambda: self._idle)

    def wake(self) -> None:
        """Work again; waking one that does not rest is harmless."""
        with self._guard:
            self._resting = False
            self._guard.notify_all()

    @property
    def busy(self) -> bool:
        """Whether something is running or waits for it."""
        return not all(future.done() for future in [*self._pending])

    def close(self, *, at_once: bool = False) -> None:
        """Finish what is running, or cancel it `at_once`; then end the thread. Closing twice is harmless."""
        with self._guard:
            self._closing = True
            self._guard.notify_all()
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._end.set)
            if at_once:
                for future in [*self._pending]:
                    future.cancel()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        while self._may_work():
            try:
                self.engine.run([self._host()])
            except Exception as error:  # of a step: the clients are told, the server goes on
                self._fail(EngineError(f"the engine failed: {type(error).__name__}: {error}"))
                self.engine.refresh()
        self._early.clear()
        self._fail(EngineError("this server is shutting down"))

    def _may_work(self) -> bool:
        """Wait until there may be a drive; False once there will be no more."""
        with self._guard:
            self._idle = True
            self._guard.notify_all()
            self._guard.wait_for(lambda: self._closing or not self._resting)
            self._idle = self._closing
            return not self._closing

    def _fail(self, reason: EngineError) -> None:
        """Give up all that had begun."""
        early = {future for _, future in self._early}
        for future in [*self._pending]:
            if future not in early:
                self._settle(future, error=reason)

    async def _host(self) -> None:
        """An episode that lasts until the engine rests: its loop is where all others run."""
        self._end, self._places = asyncio.Event(), asyncio.Semaphore(self.at_once)
        self._jobs: set[asyncio.Task[None]] = set()
        with self._guard:
            self._loop = asyncio.get_running_loop()
            early, self._early = self._early, []
            if self._closing or self._resting:
                self._end.set()
        for make, future in early:
            self._begin(make, future)
        try:
            await self._end.wait()
            while self._jobs:
                await asyncio.wait(self._jobs)
        finally:
            with self._guard:
                self._loop = None

    def _begin(self, make: Make, future: Future[Any]) -> None:
        if future.done():  # its client left before
            self._pending.discard(future)
            return
        loop = asyncio.get_running_loop()
        job = loop.create_task(self._job(make, future))
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

        def cancelled(future: Future[Any]) -> None:
            if future.cancelled():
                with suppress(RuntimeError):  # the loop has ended, and the job with it
                    loop.call_soon_threadsafe(job.cancel)

        future.add_done_callback(cancelled)

    async def _job(self, make: Make, future: Future[Any]) -> None:
        """Carry out one coroutine. One that is cancelled was so by its client, or is told by `_work`."""
        try:
            async with self._places:
                result = await make()
        except Exception as error:
            self._settle(future, error=error)
        except asyncio.CancelledError:
            if future.cancelled():
                self._pending.discard(future)
            raise
        else:
            self._settle(future, result=result)

    def _settle(self, future: Future[Any], *, result: Any = None, error: Exception | None = None) -> None:
        self._pending.discard(future)
        with suppress(InvalidStateError):  # its client has just cancelled it
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)
