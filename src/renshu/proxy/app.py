"""The proxy's endpoints: episodes begin and end here, and inside each is an OpenAI endpoint of its own."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, TypeVar

from pydantic import ConfigDict, Field
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from renshu.config import StrictModel
from renshu.errors import ConfigError
from renshu.proxy.episode import Episode, Split
from renshu.proxy.register import Register
from renshu.serve.answer import Answer
from renshu.serve.completions import Completions
from renshu.serve.form import Form, model_card
from renshu.serve.http import HANDLERS, JsonResponse, body_of, require_local
from renshu.serve.refusals import Refusal
from renshu.serve.request import Defaults, read_object, read_request
from renshu.serve.worker import Worker
from renshu.types import Score, Scored, Unscored

TICK = 0.05  # seconds between two looks at whether something has come about
LONGEST_WAIT = 60.0  # seconds that GET /status waits at most
NO_REWARD = "no_reward: the agent's program does not know it"

ModelT = TypeVar("ModelT", bound=StrictModel)


class BeginBody(StrictModel):
    """`POST /episodes`. task: any text; episodes of the same one are compared with each other."""

    model_config = ConfigDict(strict=True)
    task: str = Field(min_length=1, max_length=1000)
    split: Split = "train"


class RewardBody(StrictModel):
    """`POST /episodes/ID/reward`. reward: null is unknown; left out, it is 1 or 0 by `success`."""

    model_config = ConfigDict(strict=True)
    reward: float | None = None
    success: bool | None = None


class TrainBody(StrictModel):
    """`POST /train`. update: which one is asked for, counted from 1; left out: the next."""

    model_config = ConfigDict(strict=True)
    update: int | None = Field(None, ge=1)


class EmptyBody(StrictModel):
    """`POST /finish`."""


@dataclass(frozen=True)
class Proxy:
    """What is served. name: of the model, whatever clients call it."""

    name: str
    register: Register
    worker: Worker

    def close(self, *, at_once: bool = False) -> None:
        """Finish what is running, or give it up `at_once`; closing twice is harmless."""
        self.worker.close(at_once=at_once)


def application(proxy: Proxy) -> Starlette:
    """The application; its worker starts and ends with it."""
    endpoints = _Endpoints(proxy)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        proxy.worker.start()
        yield
        await asyncio.to_thread(proxy.close)

    routes = [
        Route("/health", endpoints.health),
        Route("/status", endpoints.status),
        Route("/episodes", endpoints.begin, methods=["POST"]),
        Route("/episodes/{id}/reward", endpoints.reward, methods=["POST"]),
        Route("/episodes/{id}/v1/models", endpoints.models),
        Route("/episodes/{id}/v1/chat/completions", endpoints.completions, methods=["POST"]),
        Route("/train", endpoints.train, methods=["POST"]),
        Route("/finish", endpoints.finish, methods=["POST"]),
        Route("/v1/{rest:path}", endpoints.outside, methods=["GET", "POST"]),
    ]
    return Starlette(routes=routes, exception_handlers=HANDLERS, lifespan=lifespan)


class _Endpoints:
    def __init__(self, proxy: Proxy) -> None:
        self.proxy, self.register = proxy, proxy.register
        self._completions = Completions(proxy.worker)

    async def health(self, request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def status(self, request: Request) -> Response:
        """Where the run stands; `?after=N&wait=S` waits up to S seconds until an update beyond the Nth is
        made, and none is being made.
        """
        require_local(request)
        after, wait = _number(request, "after", -1), min(_number(request, "wait", 0), LONGEST_WAIT)

        def waits() -> bool:
            standing = self.register.status()
            made = standing["updates"] > after or standing["phase"] != "practice"
            return not made or standing["phase"] in ("starting", "updating")

        deadline = asyncio.get_running_loop().time() + wait
        while waits() and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(TICK)
        return JsonResponse(self.register.status())

    async def begin(self, request: Request) -> Response:
        body = await self._body(request, BeginBody)
        while self.register.must_wait(body.split):
            await asyncio.sleep(TICK)
        episode = self.register.begin(body.task, body.split)
        base_url = f"{request.url.scheme}://{request.url.netloc}/episodes/{episode.id}/v1"
        return JsonResponse({"id": episode.id, "base_url": base_url}, 201)

    async def reward(self, request: Request) -> Response:
        body = await self._body(request, RewardBody)
        episode = self.register.find(request.path_params["id"])
        ended = self.register.end(episode.id, _score(episode, body))
        reason = ended.reason if isinstance(ended, Unscored) else None
        return JsonResponse({"id": episode.id, "scored": reason is None, "reason": reason})

    async def models(self, request: Request) -> Response:
        require_local(request)
        self.register.find(request.path_params["id"])
        return JsonResponse({"object": "list", "data": [model_card(self.proxy.name)]})

    async def completions(self, request: Request) -> Response:
        require_local(request)
        episode = self.register.find(request.path_params["id"])
        self._completions.require_room()
        rules, chat = episode.rules.sampling, self.register.chat
        defaults = Defaults(rules.max_tokens, rules.temperature)
        asked = read_request(await body_of(request), None, defaults, chat.stop_ids)
        ruled = episode.ruled(asked)
        form = Form(self.proxy.name, chat, logprobs=ruled.logprobs)
        self.register.asks(episode, episode.ignored(asked))

        def ended(answer: Answer | None, seconds: float) -> None:
            self.register.answered(episode)

        answering = partial(episode.answerer.answer, ruled)
        return await self._completions.respond(request, ruled, form, answering, ended)

    async def train(self, request: Request) -> Response:
        body = await self._body(request, TrainBody)
        update = body.update or self.register.updates + 1
        self.register.train(update)
        return JsonResponse({"update": update}, 202)

    async def finish(self, request: Request) -> Response:
        """Returns once the run is over."""
        await self._body(request, EmptyBody)
        self.register.finish()
        while self.register.outcome is None:
            await asyncio.sleep(TICK)
        if "error" in self.register.outcome:
            raise Refusal(500, str(self.register.outcome["error"]))
        return JsonResponse(dict(self.register.outcome))

    async def outside(self, request: Request) -> Response:
        raise Refusal(
            404, "requests belong to an episode: begin one with POST /episodes, and use the base_url it gives"
        )

    async def _body(self, request: Request, kind: type[ModelT]) -> ModelT:
        require_local(request)
        try:
            return kind.from_dict(read_object(await body_of(request)), source="request")
        except ConfigError as error:
            _refuse(str(error))


def _score(episode: Episode, body: RewardBody) -> Score:
    """Raises Refusal where the two say nothing, or too little."""
    if body.reward is None:
        if body.success is None:
            return Unscored(NO_REWARD)
        return Scored(float(body.success), success=body.success)
    if body.success is None and episode.split != "train":
        _refuse(f"success: an episode of {episode.split} is measured: say true or false", "success")
    return Scored(body.reward, success=body.success)


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        _refuse(f"{name}: {text[:40]!r} is no number", name)
    return value


def _refuse(text: str, param: str | None = None) -> NoReturn:
    raise Refusal(400, text[:500], param=param)
