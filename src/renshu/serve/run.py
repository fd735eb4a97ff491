"""From an agent to a running server."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any, Protocol

import uvicorn

from renshu.chat import ChatFormat
from renshu.engines import Engine
from renshu.errors import ConfigError
from renshu.serve.answer import Answerer
from renshu.serve.app import Service, application
from renshu.serve.log import RequestLog
from renshu.serve.request import Defaults
from renshu.serve.stream import PATIENCE
from renshu.serve.worker import Worker


def service_of(
    chat: ChatFormat,
    engine: Engine,
    name: str,
    *,
    defaults: Defaults | None = None,
    log: Path | None = None,
    key: str | None = None,
    at_once: int = 64,
    local: bool = True,
) -> Service:
    """All parts of a server. log: the file of requests. at_once: requests that decode together."""
    defaults = defaults or Defaults()
    return Service(
        name,
        Answerer(chat, engine),
        Worker(engine, at_once),
        replace(defaults, max_tokens=min(defaults.max_tokens, engine.context)),
        RequestLog(log) if log is not None else None,
        key,
        local,
    )


class Served(Protocol):
    """What a server has behind it."""

    @property
    def worker(self) -> Worker: ...

    def close(self, *, at_once: bool = False) -> None:
        """Finish what is running, or give it up `at_once`; closing twice is harmless."""
        ...


class Server(uvicorn.Server):
    """Finishes what is running before it ends; a second Ctrl-C, or a client that takes no bytes, ends it."""

    def __init__(self, config: uvicorn.Config, service: Served) -> None:
        super().__init__(config)
        self.service = service

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        deaf = asyncio.ensure_future(self._leave_the_deaf())
        try:
            await super().shutdown(sockets)
        finally:
            deaf.cancel()
        if self.force_exit:
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # about connections that are torn
            await asyncio.to_thread(self.service.close, at_once=True)

    async def _leave_the_deaf(self) -> None:
        """Give up connections that still stand when every answer has been ready for a while."""
        while self.service.worker.busy:
            await asyncio.sleep(0.1)
        await asyncio.sleep(PATIENCE)
        self.force_exit = True


def server(service: Service, host: str, port: int) -> Server:
    """A server that was not started yet."""
    return server_of(application(service), service, host, port)


def server_of(app: Any, service: Served, host: str, port: int) -> Server:
    """The same of any ASGI application with a service behind it."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
    )
    return Server(config, service)


def run(service: Service, host: str, port: int) -> None:
    """Serve until SIGTERM or ctrl-C, then finish what is running. Raises ConfigError for a port in use."""
    serving = server(service, host, port)
    bound = bind(serving)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn hands the signal on at its end
    with suppress(KeyboardInterrupt):
        serving.run(sockets=[bound])


def bind(serving: Server) -> socket:
    """The socket that a server is to listen at. Raises ConfigError for a port in use."""
    try:
        return serving.config.bind_socket()
    except SystemExit:  # uvicorn's way to say it
        host, port = serving.config.host, serving.config.port
        raise ConfigError(f"port {port} of {host} cannot be used: choose another with --port") from None
