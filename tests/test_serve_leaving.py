"""The server ends when it is told to, whatever its clients do."""

from __future__ import annotations

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from renshu.serve import run, stream
from renshu.serve.http import is_loopback
from serve_kit import HELLO, Steps, fake

LONG = "word " * 200


@contextmanager
def listening(service):
    """A server whose connections hold little: its port, itself and its thread, which has ended afterwards."""
    serving = run.server(service, "127.0.0.1", 0)
    bound = serving.config.bind_socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [bound]})
    thread.start()
    while not serving.started:
        time.sleep(0.005)
    port = bound.getsockname()[1]
    try:
        yield port, serving
    finally:
        serving.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def deaf_client(port: int, **body) -> socket.socket:
    """A client that asks and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    data = json.dumps({**HELLO, "max_tokens": 1000, **body}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n"
    client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
    return client


@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_never_reads_does_not_hold_the_server(monkeypatch, streamed):
    monkeypatch.setattr(stream, "PATIENCE", 0.3)
    monkeypatch.setattr(run, "PATIENCE", 0.3)
    service = fake(Steps(lambda _: LONG))
    with listening(service) as (port, serving):
        client = deaf_client(port, stream=streamed, logprobs=True)
        while not service.worker.busy:
            time.sleep(0.005)
        serving.should_exit = True
    client.close()
    assert not service.worker.busy


def test_told_twice_the_server_gives_up_what_is_running():
    steps = Steps(lambda _: LONG, pause=0.01)
    service = fake(steps)
    with listening(service) as (port, serving):
        client = deaf_client(port)
        while len(steps.served) < 5:
            time.sleep(0.005)
        serving.should_exit = serving.force_exit = True
    client.close()
    assert len(steps.served) < 1000  # not played to its end
    assert not service.worker.busy
    assert not service.worker._thread.is_alive()


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.0.5", "::1"])
def test_hosts_that_only_this_machine_can_reach(host):
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "localhost.evil.example"])
def test_hosts_that_others_can_reach(host):
    assert not is_loopback(host)
