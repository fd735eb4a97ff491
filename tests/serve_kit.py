"""A server in this process, with a scripted engine or any other, and clients that need no network."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import uvicorn

from renshu.engines import Engine
from renshu.engines.driver import Request
from renshu.engines.scripted import ScriptedEngine, ScriptedSession
from renshu.serve.app import Service, application
from renshu.serve.run import server, service_of
from rollout_kit import CHAT, ids_of, text_of

CALLED = {"name": "weather", "arguments": '{"city": "Oslo"}'}  # a call as OpenAI writes it
HELLO = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Steps(ScriptedEngine):
    """Says what a function makes of the prompt, one token a step; `served` has how many each step served."""

    def __init__(self, say: Callable[[str], str], pause: float = 0.0, context: int = 8192) -> None:
        super().__init__([], context=context)
        self._say, self._pause = say, pause
        self.served: list[int] = []

    def _step(self, requests: list[Request[ScriptedSession]]) -> None:
        self.served.append(len(requests))
        time.sleep(self._pause)
        for request in requests:
            words = ids_of(self._say(text_of(request.session.ids[: request.history])))
            request.add(words[len(request.logprobs)], -0.5)


def fake(engine: Engine, **options: Any) -> Service:
    return service_of(CHAT, engine, "fake", **options)


def in_process(service: Service, work: Callable[[httpx2.AsyncClient], Any]) -> Any:
    """What `work` returns, given a client that speaks to the application directly."""

    async def go() -> Any:
        app = application(service)
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client,
        ):
            return await work(client)

    return asyncio.run(go())


def ask(service: Service, **body: Any) -> httpx2.Response:
    """The response to one request."""
    return in_process(service, lambda client: client.post("/v1/chat/completions", json={**HELLO, **body}))


def events(response: httpx2.Response) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as it should."""
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


@contextmanager
def listening(service: Service) -> Iterator[tuple[str, uvicorn.Server]]:
    """A real server on a free port: its address, and itself."""
    serving = server(service, "127.0.0.1", 0)
    socket = serving.config.bind_socket()
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        while not serving.started:
            time.sleep(0.005)
        yield f"http://127.0.0.1:{socket.getsockname()[1]}", serving
    finally:
        serving.should_exit = True
        thread.join()
