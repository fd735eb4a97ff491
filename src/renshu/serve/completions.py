"""Carrying out requests for answers on a worker: waiting, streaming, and clients that leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from renshu.errors import EngineError, RenshuError
from renshu.serve.answer import Answer
from renshu.serve.form import Form
from renshu.serve.http import JsonResponse
from renshu.serve.refusals import Refusal
from renshu.serve.request import ChatRequest
from renshu.serve.stream import EventStream
from renshu.serve.turn import Delta, Tell
from renshu.serve.worker import Worker

WAITING = 1000  # requests that may be in the house, running or waiting

Answering = Callable[[Tell | None], Coroutine[Any, Any, Answer]]
Ended = Callable[[Answer | None, float], None]


class Completions:
    """Runs the coroutines that answer requests, and gives clients what they make."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._running = 0

    def require_room(self) -> None:
        """Raises Refusal while too many requests wait."""
        if self._running >= WAITING:
            raise Refusal(503, f"{WAITING} requests are waiting already: try again later", code="overloaded")

    async def respond(
        self, request: Request, asked: ChatRequest, form: Form, answering: Answering, ended: Ended
    ) -> Response:
        """The answer, or a stream of it once the prompt was accepted. Raises Refusal.

        ended: told the answer, None if there is none, and the seconds it took, on whichever thread ends it.
        """
        if asked.stream:
            return await self._stream(request, asked, form, answering, ended)
        future = self._submit(lambda: answering(None), ended)
        return JsonResponse(form.body(await self._result(future, _gone(request))))

    async def _stream(
        self, request: Request, asked: ChatRequest, form: Form, answering: Answering, ended: Ended
    ) -> Response:
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[Delta | None] = asyncio.Queue()

        def tell(delta: Delta | None) -> None:
            loop.call_soon_threadsafe(deltas.put_nowait, delta)

        future = self._submit(lambda: answering(tell), ended)
        future.add_done_callback(lambda _: tell(None))
        if not await _first(asyncio.ensure_future(deltas.get()), _gone(request)):
            future.cancel()
            raise ClientDisconnect
        if future.done():
            await self._result(future)

        async def events() -> AsyncIterator[dict[str, Any]]:
            for chunk in form.opening(asked.choices):
                yield chunk
            while (delta := await deltas.get()) is not None:
                yield form.delta(delta)
            try:
                answer = await self._result(future)
            except Refusal as refusal:
                yield refusal.body
                return
            for chunk in form.closing(answer, with_usage=asked.usage):
                yield chunk

        return EventStream(events(), future.cancel)

    def _submit(self, make: Callable[[], Coroutine[Any, Any, Answer]], ended: Ended) -> Future[Answer]:
        began = time.perf_counter()
        try:
            future = self.worker.submit(make)
        except EngineError as error:
            raise Refusal(503, str(error)) from None
        self._running += 1
        loop = asyncio.get_running_loop()

        def done(over: Future[Answer]) -> None:
            loop.call_soon_threadsafe(self._leave)
            answer = None if over.cancelled() or over.exception() is not None else over.result()
            ended(answer, time.perf_counter() - began)

        future.add_done_callback(done)
        return future

    def _leave(self) -> None:
        self._running -= 1

    async def _result(self, future: Future[Answer], gone: Coroutine[Any, Any, None] | None = None) -> Answer:
        """The answer. Raises Refusal, and ClientDisconnect once nobody waits for it any more."""
        wrapped = asyncio.wrap_future(future)
        try:
            if gone is not None and not await _first(wrapped, gone):
                raise ClientDisconnect
            await asyncio.wait([wrapped])
            return _answer(wrapped)
        finally:
            future.cancel()  # of no effect on one that is done


def _answer(wrapped: asyncio.Future[Answer]) -> Answer:
    if wrapped.cancelled():
        raise Refusal(503, "this server is shutting down")
    error = wrapped.exception()
    if isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, Refusal):
        raise error
    if error is not None:
        raise Refusal(
            500, str(error) if isinstance(error, RenshuError) else f"{type(error).__name__}: {error}"
        )
    return wrapped.result()


async def _first(wanted: asyncio.Future[Any], gone: Coroutine[Any, Any, None]) -> bool:
    """Wait until `wanted` is done; False if the client was gone before."""
    leaving = asyncio.ensure_future(gone)
    try:
        await asyncio.wait({wanted, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return wanted.done()
    finally:
        leaving.cancel()


async def _gone(request: Request) -> None:
    """Returns once the client has hung up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
