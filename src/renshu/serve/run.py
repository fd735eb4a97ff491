"""From an agent to a running server."""

from __future__ import annotations

import ipaddress
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import uvicorn

from renshu.chat import ChatFormat
from renshu.engines import Engine
from renshu.errors import ConfigError
from renshu.serve.answer import Answerer
from renshu.serve.app import Service, application
from renshu.serve.log import RequestLog
from renshu.serve.request import Defaults
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


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens at `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def server(service: Service, host: str, port: int) -> uvicorn.Server:
    """A server that was not started yet. It finishes what is running before it ends."""
    config = uvicorn.Config(
        application(service),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
    )
    return uvicorn.Server(config)


def run(service: Service, host: str, port: int) -> None:
    """Serve until SIGTERM or ctrl-C, then finish what is running. Raises ConfigError for a port in use."""
    serving = server(service, host, port)
    try:
        socket = serving.config.bind_socket()
    except SystemExit:  # uvicorn's way to say it
        raise ConfigError(f"port {port} of {host} cannot be used: choose another with --port") from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn hands the signal on at its end
    with suppress(KeyboardInterrupt):
        serving.run(sockets=[socket])
