"""The endpoints, as an ASGI application: `/v1/chat/completions`, `/v1/models`, `/health`."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from renshu.errors import EngineError, RenshuError
from renshu.serve.answer import Answer, Answerer
from renshu.serve.form import Form
from renshu.serve.log import RequestLog
from renshu.serve.refusals import Refusal
from renshu.serve.request import ChatRequest, Defaults, read_request
from renshu.serve.stream import EventStream
from renshu.serve.turn import Delta
from renshu.serve.worker import Worker

BODY = 8 << 20  # bytes
HOST = re.compile(r"(?:\[(.*)\]|([^:]*))(?::\d*)?")
PATIENCE = 30.0  # seconds until a body must have arrived
WAITING = 1000  # requests that may be in the house, running or waiting


@dataclass(frozen=True)
class Service:
    """What is served. name: of the model. key: what clients must send as a bearer token, if anything.

    local: only requests that name this machine as their host are answered, so that no page in a browser can
    reach the model under a name of its own.
    """

    name: str
    answerer: Answerer
    worker: Worker
    defaults: Defaults = field(default_factory=Defaults)
    log: RequestLog | None = None
    key: str | None = None
    local: bool = True

    def close(self, *, at_once: bool = False) -> None:
        """Finish what is running, or give it up `at_once`; closing twice is harmless."""
        self.worker.close(at_once=at_once)
        if self.log is not None:
            self.log.close()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at `host`."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class JsonResponse(Response):
    """JSON in ASCII: half a surrogate pair that a client sent cannot break it."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


def application(service: Service) -> Starlette:
    """The application; its worker starts and ends with it."""
    endpoints = _Endpoints(service)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.worker.start()
        yield
        await asyncio.to_thread(service.close)

    return Starlette(
        routes=[
            Route("/v1/chat/completions", endpoints.completions, methods=["POST"]),
            Route("/v1/models", endpoints.models),
            Route("/v1/models/{name:path}", endpoints.model),
            Route("/health", endpoints.health),
        ],
        exception_handlers={
            Refusal: _refused,
            HTTPException: _refused_by_starlette,
            ClientDisconnect: _left,
            Exception: _broken,
        },
        lifespan=lifespan,
    )


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self.service = service
        self._running = 0

    async def health(self, request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        self._admit(request)
        return JsonResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._admit(request)
        if request.path_params["name"] != self.service.name:
            text = f"there is no such model; this server has {self.service.name!r}"
            raise Refusal(404, text, code="model_not_found", param="model")
        return JsonResponse(self._model())

    async def completions(self, request: Request) -> Response:
        self._admit(request)
        service = self.service
        if self._running >= WAITING:
            raise Refusal(503, f"{WAITING} requests are waiting already: try again later", code="overloaded")
        body = await _body(request)
        asked = read_request(body, service.name, service.defaults, service.answerer.chat.stop_ids)
        form = Form(service.name, service.answerer.chat, logprobs=asked.logprobs)
        if asked.stream:
            return await self._stream(request, asked, form)
        future = self._submit(asked, form, lambda: service.answerer.answer(asked))
        answer = await self._result(future, _gone(request))
        return JsonResponse(form.body(answer))

    async def _stream(self, request: Request, asked: ChatRequest, form: Form) -> Response:
        """A stream once the prompt was accepted, else a refusal."""
        loop = asyncio.get_running_loop()
        deltas: asyncio.Queue[Delta | None] = asyncio.Queue()

        def tell(delta: Delta | None) -> None:
            loop.call_soon_threadsafe(deltas.put_nowait, delta)

        future = self._submit(asked, form, lambda: self.service.answerer.answer(asked, tell))
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

    def _submit(self, asked: ChatRequest, form: Form, make: Callable[[], Any]) -> Future[Answer]:
        began = time.perf_counter()
        try:
            future: Future[Answer] = self.service.worker.submit(make)
        except EngineError as error:
            raise Refusal(503, str(error)) from None
        self._running += 1
        loop = asyncio.get_running_loop()

        def done(ended: Future[Answer]) -> None:
            loop.call_soon_threadsafe(self._leave)
            log = self.service.log
            if log is not None and not ended.cancelled() and ended.exception() is None:
                log.add(form.id, asked, ended.result(), time.perf_counter() - began)

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

    def _model(self) -> dict[str, Any]:
        return {"id": self.service.name, "object": "model", "created": 0, "owned_by": "renshu"}

    def _admit(self, request: Request) -> None:
        """Raises Refusal for a request without the key, or under a foreign name of this machine."""
        host = request.headers.get("host", "")
        named = HOST.fullmatch(host)
        if self.service.local and not (named and is_loopback(named[1] or named[2] or "")):
            raise Refusal(403, f"this server is for this machine only, not for the host {host[:80]!r}")
        if self.service.key is not None:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self.service.key.encode()):
                raise Refusal(401, "send this server's key as a bearer token", code="invalid_api_key")


def _answer(wrapped: asyncio.Future[Answer]) -> Answer:
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


async def _body(request: Request) -> bytes:
    """Raises Refusal: 408 for a body that does not come, 413 for one too large, 415 for another kind."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, f"send the request as application/json, not {kind[:80] or 'without a type'}")
    read = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for part in request.stream():
                read += part
                if len(read) > BODY:
                    raise Refusal(413, f"the body is larger than {BODY >> 20} MiB")
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {PATIENCE:.0f} seconds") from None
    return bytes(read)


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


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal)
    headers = {"Connection": "close"} if error.status in (408, 413) else None
    return JsonResponse(error.body, error.status, headers)


async def _refused_by_starlette(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.scope['path'][:200]}: {error.detail}"
    return JsonResponse(Refusal(error.status_code, text).body, error.status_code, error.headers)


async def _left(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _broken(request: Request, error: Exception) -> Response:
    return JsonResponse(Refusal(500, f"this server failed: {type(error).__name__}").body, 500)
