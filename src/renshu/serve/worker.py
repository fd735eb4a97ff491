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
        self._closing = False

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def submit(self, make: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine, made on the thread, among the others; cancelling the future cancels it.

        Raises EngineError after `close`.
        """
        future: Future[T] = Future()
        with self._guard:
            while self._loop is None and not self._closing:
                self._guard.wait()
            if self._loop is None or self._closing:
                raise EngineError("this server is shutting down")
            self._pending.add(future)
            self._loop.call_soon_threadsafe(self._begin, make, future)
        return future

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
        while not self._closing:
            try:
                self.engine.run([self._host()])
            except Exception as error:  # of a step: the clients are told, the server goes on
                reason = EngineError(f"the engine failed: {type(error).__name__}: {error}")
                for future in [*self._pending]:
                    self._settle(future, error=reason)
                self.engine.refresh()

    async def _host(self) -> None:
        """An episode that lasts as long as the server: its loop is where all others run."""
        self._end, self._places = asyncio.Event(), asyncio.Semaphore(self.at_once)
        self._jobs: set[asyncio.Task[None]] = set()
        with self._guard:
            self._loop = asyncio.get_running_loop()
            self._guard.notify_all()
            if self._closing:
                self._end.set()
        try:
            await self._end.wait()
            while self._jobs:
                await asyncio.wait(self._jobs)
        finally:
            with self._guard:
                self._loop = None

    def _begin(self, make: Make, future: Future[Any]) -> None:
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
