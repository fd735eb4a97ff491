"""A server that answers as a test tells it, on a free port of this machine; and what it was asked."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

Answer = Callable[[str, dict[str, Any]], Any]  # (path, body) → a body, or (status, body[, headers])


class Listener:
    """url: its base address. asked: (path, body, headers) of every request, in order."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.url = ""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body, _ in self.asked]

    async def handle(self, request: Request) -> Response:
        content = await request.body()
        body = json.loads(content) if content else dict(request.query_params)
        self.asked.append((request.url.path, body, dict(request.headers)))
        told = self.answer(request.url.path, body)
        if hasattr(told, "__await__"):
            told = await told
        status, answer, *headers = told if isinstance(told, tuple) else (200, told)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return Response(text, status, headers=headers[0] if headers else None)


@contextmanager
def listening(answer: Answer) -> Iterator[Listener]:
    """A server for as long as the block lasts."""
    listener = Listener(answer)
    app = Starlette(routes=[Route("/{path:path}", listener.handle, methods=["GET", "POST"])])
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    server, socket = uvicorn.Server(config), config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.005)
        listener.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        yield listener
    finally:
        server.should_exit = True
        thread.join()


def said(content: str | None = None, *calls: Any, finish: str | None = None, usage: Any = (10, 5)) -> Any:
    """A chat completion. calls: as they stand on the wire. usage: prompt, sampled[, cached], or any JSON."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = list(calls)
    body: dict[str, Any] = {"object": "chat.completion", "choices": [{"index": 0, "message": message}]}
    body["choices"][0]["finish_reason"] = finish or ("tool_calls" if calls else "stop")
    if isinstance(usage, tuple):
        prompt, sampled, *cached = usage
        usage = {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached[0]}} if cached else {}
    return body | ({} if usage is None else {"usage": usage})


def wire(name: str, arguments: str, identity: str | None = "call_a") -> dict[str, Any]:
    """A call on the wire."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return call if identity is None else {"id": identity, **call}
