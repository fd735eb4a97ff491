"""The driver alone: order, determinism, async tools, errors; with the scripted engine as its engine."""

from __future__ import annotations

import asyncio
import time

import pytest

from renshu.engines import Sampling, Session
from renshu.engines.driver import Request
from renshu.engines.scripted import ScriptedEngine, ScriptedSession
from renshu.errors import EngineError

ONE = Sampling(max_tokens=1)


class Slow(ScriptedEngine):
    """One token a step, and a diary of which sessions each step served."""

    def __init__(self) -> None:
        super().__init__([])
        self.diary: list[list[int]] = []

    def _step(self, requests: list[Request[ScriptedSession]]) -> None:
        self.diary.append([request.session.number for request in requests])
        for request in requests:
            request.add(7, 0.0)


def test_no_barrier_between_turns() -> None:
    """Session 1 takes three turns while 2 is in its first; steps serve both, in order of opening."""
    engine = Slow()
    first, second = (engine.open([1], seed=0) for _ in range(2))

    async def three(session: Session) -> None:
        for _ in range(3):
            await session.generate(Sampling(max_tokens=2))

    engine.run([second.generate(Sampling(max_tokens=7)), three(first)])
    assert engine.diary == [[1, 2]] * 6 + [[2]]


def test_an_async_tool_holds_up_nobody_else() -> None:
    engine = Slow()
    tool_user, other = (engine.open([1], seed=0) for _ in range(2))
    seen = []

    async def uses_tool() -> None:
        await tool_user.generate(ONE)
        await asyncio.sleep(0.05)
        seen.append(len(other.ids))
        await tool_user.generate(ONE)

    engine.run([uses_tool(), other.generate(Sampling(max_tokens=20))])
    assert seen == [21]  # all 20 tokens were sampled while the tool slept
    assert engine.diary == [[1, 2]] + [[2]] * 19 + [[1]]


def test_waiting_for_a_tool_burns_no_time() -> None:
    engine = Slow()

    async def sleeps() -> None:
        await asyncio.sleep(0.3)

    before = time.process_time()
    engine.run([sleeps()])
    assert time.process_time() - before < 0.15


def test_a_timed_out_turn_keeps_what_was_sampled_and_frees_its_place() -> None:
    engine = Slow()
    session, other = (engine.open([1], seed=0) for _ in range(2))

    async def impatient() -> str:
        turn = asyncio.ensure_future(session.generate(Sampling(max_tokens=1000)))
        await other.generate(Sampling(max_tokens=3))
        turn.cancel()
        await asyncio.gather(turn, return_exceptions=True)
        await other.generate(Sampling(max_tokens=2))
        return "done"

    assert engine.run([impatient()]) == ["done"]
    assert engine.diary == [[1, 2]] * 3 + [[2]] * 2
    assert session.ids == [1, 7, 7, 7]


def test_the_first_error_in_order_is_raised_and_the_rest_is_cancelled() -> None:
    engine = Slow()
    cancelled = []

    async def fails(text: str) -> None:
        await engine.open([1], seed=0).generate(ONE)
        raise ValueError(text)

    async def endless() -> None:
        try:
            await engine.open([1], seed=0).generate(Sampling(max_tokens=1000))
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    with pytest.raises(ValueError, match="first"):
        engine.run([endless(), fails("first"), fails("second")])
    assert cancelled == [True]


def test_an_error_of_the_model_reaches_the_caller() -> None:
    engine = ScriptedEngine([[1]])
    sessions = engine.open([1], seed=0).fork([1, 2])
    with pytest.raises(EngineError, match="no reply left"):
        engine.run([session.generate(ONE) for session in sessions])


def test_running_within_a_running_loop() -> None:
    """A notebook has a loop of its own; and an episode must not start a second run."""
    engine = Slow()

    async def notebook() -> list[int]:
        session = engine.open([1], seed=0)
        engine.run([session.generate(ONE)])
        return session.ids

    assert asyncio.run(notebook()) == [1, 7]

    async def nested() -> None:
        engine.run([engine.open([1], seed=0).generate(ONE)])

    with pytest.raises(EngineError, match="already running"):
        engine.run([nested()])


def test_no_episodes_no_results() -> None:
    assert Slow().run([]) == []


def test_scripts_are_cut_like_any_turn_and_lists_are_taken_in_session_order() -> None:
    engine = ScriptedEngine([[10, 11, 12], [20, 21, 22, 23]], context=6)
    first, second = (engine.open([1, 2], seed=0) for _ in range(2))
    sampling = Sampling(max_tokens=9, stop_ids=frozenset({11, 23}))
    late, early = engine.run([second.generate(sampling), first.generate(sampling)])
    assert (early.segment.ids, early.segment.logprobs, early.finish) == ((10, 11), (0.0, 0.0), "stop")
    assert (late.segment.ids, late.finish) == ((20, 21, 22, 23), "stop")
    engine = ScriptedEngine(lambda ids: [])
    with pytest.raises(EngineError, match="no token at all"):
        engine.run([engine.open([1], seed=0).generate(ONE)])


def test_a_script_without_stop_token_ends_as_length() -> None:
    engine = ScriptedEngine(lambda ids: [len(ids)])
    (generated,) = engine.run([engine.open([1, 2], seed=0).generate(Sampling(max_tokens=9))])
    assert (generated.segment.ids, generated.finish) == ((2,), "length")
