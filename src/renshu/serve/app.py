"""The endpoints, as an ASGI application: `/v1/chat/completions`, `/v1/models`, `/health`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from renshu.serve.answer import Answer, Answerer
from renshu.serve.completions import Completions
from renshu.serve.form import Form, model_card
from renshu.serve.http import HANDLERS, JsonResponse, body_of, require_key, require_local
from renshu.serve.log import RequestLog
from renshu.serve.refusals import Refusal
from renshu.serve.request import Defaults, read_request
from renshu.serve.worker import Worker


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
        exception_handlers=HANDLERS,
        lifespan=lifespan,
    )


class _Endpoints:
    def __init__(self, service: Service) -> None:
        self.service = service
        self._completions = Completions(service.worker)

    async def health(self, request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def models(self, request: Request) -> Response:
        self._admit(request)
        return JsonResponse({"object": "list", "data": [model_card(self.service.name)]})

    async def model(self, request: Request) -> Response:
        self._admit(request)
        if request.path_params["name"] != self.service.name:
            text = f"there is no such model; this server has {self.service.name!r}"
            raise Refusal(404, text, code="model_not_found", param="model")
        return JsonResponse(model_card(self.service.name))

    async def completions(self, request: Request) -> Response:
        self._admit(request)
        service = self.service
        self._completions.require_room()
        body = await body_of(request)
        asked = read_request(body, service.name, service.defaults, service.answerer.chat.stop_ids)
        form = Form(service.name, service.answerer.chat, logprobs=asked.logprobs)

        def ended(answer: Answer | None, seconds: float) -> None:
            if service.log is not None and answer is not None:
                service.log.add(form.id, asked, answer, seconds)

        def answering(tell: Any) -> Any:
            return service.answerer.answer(asked, tell)

        return await self._completions.respond(request, asked, form, answering, ended)

    def _admit(self, request: Request) -> None:
        """Raises Refusal for a request without the key, or under a foreign name of this machine."""
        if self.service.local:
            require_local(request)
        if self.service.key is not None:
            require_key(request, self.service.key)
