"""A worker that rests: nothing runs inside, nothing is lost."""

from __future__ import annotations

import threading
import time

import pytest

from renshu.errors import EngineError
from renshu.serve.worker import Worker
from rollout_kit import CHAT, sampling
from serve_kit import Steps


def turn(engine, text="hi"):
    async def go():
        session = engine.open(CHAT.tokenizer.encode(text), seed=0)
        generated = await session.generate(sampling())
        return CHAT.said(generated.segment.ids)

    return go


def test_what_runs_is_finished_and_what_comes_meanwhile_waits():
    engine = Steps(lambda prompt: "a" * 20, pause=0.005)
    worker = Worker(engine)
    worker.start()
    try:
        running = worker.submit(turn(engine))
        while not engine.served:
            time.sleep(0.001)
        worker.rest()
        assert running.result(0) == "a" * 20
        steps = len(engine.served)
        waiting = [worker.submit(turn(engine)) for _ in range(3)]
        left = waiting.pop()
        left.cancel()
        time.sleep(0.05)
        assert len(engine.served) == steps  # nothing was sampled
        assert not any(future.done() for future in waiting)
        worker.wake()
        assert [future.result(10) for future in waiting] == ["a" * 20] * 2
        assert engine.served[steps] == 2  # together, without the one that left
    finally:
        worker.close()


def test_resting_twice_and_from_many_threads():
    engine = Steps(lambda prompt: "ok")
    worker = Worker(engine)
    before = worker.submit(turn(engine))  # waits for the start
    worker.start()
    assert before.result(10) == "ok"
    answers = []
    clients = [
        threading.Thread(target=lambda: answers.append(worker.submit(turn(engine)).result(10)))
        for _ in range(20)
    ]
    for number, client in enumerate(clients):
        client.start()
        if number % 5 == 0:
            worker.rest()
            worker.rest()
            worker.wake()
    for client in clients:
        client.join()
    assert answers == ["ok"] * 20
    worker.close()


def test_closing_while_it_rests_tells_those_who_wait():
    engine = Steps(lambda prompt: "ok")
    worker = Worker(engine)
    worker.start()
    worker.rest()
    waiting = worker.submit(turn(engine))
    worker.close()
    with pytest.raises(EngineError, match="shutting down"):
        waiting.result(1)
    with pytest.raises(EngineError, match="shutting down"):
        worker.submit(turn(engine))
