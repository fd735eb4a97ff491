"""What every engine must do alike: native, reference, scripted and vLLM pass the same tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from engine_models import VOCAB, tiny
from renshu.engines import Engine, EngineStats, Generated, Sampling, Session
from renshu.engines.native import NativeEngine
from renshu.engines.reference import ReferenceEngine
from renshu.engines.scripted import ScriptedEngine
from renshu.engines.settings import EngineSettings
from renshu.engines.vllm import VllmEngine
from renshu.errors import ContextOverflow, EngineError
from vllm_kit import FakeVllm, Wire, serving

CONTEXT = 40
PROMPT = [5, 6, 7, 8, 9]


def make(kind: str) -> Engine:
    if kind == "scripted":
        return ScriptedEngine(lambda ids: [(sum(ids) + n * n) % VOCAB for n in range(50)], context=CONTEXT)
    return {"native": NativeEngine, "reference": ReferenceEngine}[kind](tiny(), context=CONTEXT)


@pytest.fixture(params=["native", "reference", "scripted", "vllm"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param != "vllm":
        yield make(request.param)
        return
    wire = Wire()
    with serving(FakeVllm(tiny(), context=CONTEXT, wire=wire)) as server:
        yield VllmEngine(tiny(), EngineSettings(kind="vllm", url=server.url), transport=wire)


def turn(engine: Engine, session: Session, **settings: Any) -> Generated:
    return engine.run([session.generate(Sampling(**{"max_tokens": 6} | settings))])[0]


def test_a_turn_is_appended_exactly_as_sampled(engine: Engine) -> None:
    session = engine.open(PROMPT, seed=1)
    generated = turn(engine, session)
    segment = generated.segment
    assert segment.sampled
    assert len(segment.ids) == 6
    assert session.ids == [*PROMPT, *segment.ids]
    assert segment.logprobs is not None
    assert all(logprob <= 0 for logprob in segment.logprobs)
    assert generated.finish == "length"


def test_a_stop_id_ends_the_turn_and_belongs_to_it(engine: Engine) -> None:
    free = turn(engine, engine.open(PROMPT, seed=1)).segment.ids
    stop = free[3]
    stopped = turn(engine, engine.open(PROMPT, seed=1), stop_ids=frozenset({stop}))
    assert stopped.segment.ids == free[: free.index(stop) + 1]
    assert stopped.finish == "stop"


def test_the_last_token_of_the_budget_may_be_the_stop(engine: Engine) -> None:
    free = turn(engine, engine.open(PROMPT, seed=1)).segment.ids
    stop = free[-1]
    budget = free.index(stop) + 1
    stopped = turn(engine, engine.open(PROMPT, seed=1), max_tokens=budget, stop_ids=frozenset({stop}))
    assert (stopped.segment.ids, stopped.finish) == (free[:budget], "stop")


def test_the_context_cuts_a_turn_and_leaves_nothing_for_the_next(engine: Engine) -> None:
    session = engine.open(list(range(CONTEXT - 3)), seed=1)
    cut = turn(engine, session)
    assert (len(cut.segment.ids), cut.finish, len(session.ids)) == (3, "length", CONTEXT)
    empty = turn(engine, session)
    assert (empty.segment.ids, empty.segment.logprobs, empty.finish) == ((), (), "length")


def test_what_does_not_fit_is_refused_and_changes_nothing(engine: Engine) -> None:
    assert len(engine.open([1] * CONTEXT, seed=0).ids) == CONTEXT
    with pytest.raises(ContextOverflow, match=f"{CONTEXT + 1} more do not fit into the context of {CONTEXT}"):
        engine.open([1] * (CONTEXT + 1), seed=0)
    session = engine.open(PROMPT, seed=0)
    with pytest.raises(ContextOverflow, match="5 tokens and 36 more"):
        session.extend([1] * (CONTEXT - 4))
    assert session.ids == PROMPT


def test_turns_continue_what_was_said_before(engine: Engine) -> None:
    """Sampling turn, answer, turn is greedily the same as sampling once from the whole history."""
    session = engine.open(PROMPT, seed=1)
    turn(engine, session, temperature=0)
    session.extend([10, 11])
    history = list(session.ids)
    second = turn(engine, session, temperature=0)
    assert turn(engine, engine.open(history, seed=2), temperature=0).segment.ids == second.segment.ids


def test_forks_go_their_own_way(engine: Engine) -> None:
    session = engine.open(PROMPT, seed=1)
    turn(engine, session)
    left, right = session.fork([2, 3])
    before = list(session.ids)
    left.extend([1, 2])
    turn(engine, left)
    assert session.ids == right.ids == before
    session.close()
    turn(engine, right)
    assert right.ids[: len(before)] == left.ids[: len(before)] == before


def test_seeds_decide(engine: Engine) -> None:
    """Equal seeds: equal tokens, whoever asks; other seeds, in one group or another run: others."""
    again, same, *others = [
        turn(engine, engine.open(PROMPT, seed=seed), max_tokens=20, temperature=2.0).segment.ids
        for seed in (7, 7, 8, 9)
    ]
    assert again == same
    if not isinstance(engine, ScriptedEngine):
        assert len({same, *others}) == 3
        group = engine.open(PROMPT, seed=0).fork([7, 8, 9])
        forks = engine.run([s.generate(Sampling(max_tokens=20, temperature=2.0)) for s in group])
        assert [fork.segment.ids for fork in forks] == [same, *others]


def test_a_stream_goes_on_from_turn_to_turn(engine: Engine) -> None:
    """The second turn must not replay the draws of the first: halves of a group would be copies."""
    if isinstance(engine, ScriptedEngine):
        pytest.skip("the script draws nothing")
    if isinstance(engine, VllmEngine):
        pytest.skip(
            "a server draws by one seed a turn: test_each_turn_has_its_own_seed_and_a_session_repeats"
        )
    one = engine.open(PROMPT, seed=7)
    whole = turn(engine, one, max_tokens=12).segment.ids
    two = engine.open(PROMPT, seed=7)
    assert turn(engine, two).segment.ids + turn(engine, two).segment.ids == whole


def test_episodes_of_different_length_share_the_engine_and_results_keep_their_order(engine: Engine) -> None:
    async def episode(index: int, session: Session) -> tuple[int, int]:
        for _ in range(index % 3 + 1):
            await session.generate(Sampling(max_tokens=2 + index))
            session.extend([1])
            await asyncio.sleep(0.001 * (index % 2))
        session.close()
        return index, len(session.ids)

    sessions = engine.open(PROMPT, seed=0).fork(range(5))
    results = engine.run([episode(index, session) for index, session in enumerate(sessions)])
    assert results == [(0, 8), (1, 13), (2, 20), (3, 11), (4, 19)]


def test_counting(engine: Engine) -> None:
    session = engine.open(PROMPT, seed=1)
    turn(engine, session)
    session.extend([1, 2])
    turn(engine, session)
    again = (
        0 if isinstance(engine, NativeEngine) else 5 + 5
    )  # the prompt and the fed tokens of the first turn
    untold = 5 + 13 if isinstance(engine, VllmEngine) else 0  # of prompts: the server may have known them
    computed, naive = 5 + 6 + 2 + 5 + again, (5 + 5) + (13 + 5)
    assert engine.stats == EngineStats(computed=computed, naive=naive, sampled=12, untold=untold)


def test_misuse_is_an_error(engine: Engine) -> None:
    with pytest.raises(EngineError, match="prompt is empty"):
        engine.open([], seed=0)
    session = engine.open(PROMPT, seed=0)
    with pytest.raises(EngineError, match=r"engine.run"):
        asyncio.run(session.generate(Sampling(max_tokens=1)))

    async def twice() -> None:
        await asyncio.gather(*(session.generate(Sampling(max_tokens=5)) for _ in range(2)))

    with pytest.raises(EngineError, match="already generating"):
        engine.run([twice()])
    session.close()
    session.close()
    for forbidden in (lambda: session.extend([1]), lambda: session.fork([1]), lambda: turn(engine, session)):
        with pytest.raises(EngineError, match="closed"):
            forbidden()


def test_the_engine_survives_a_failed_run(engine: Engine) -> None:
    async def fails(session: Session) -> None:
        await session.generate(Sampling(max_tokens=2))
        raise KeyError("tool")

    sessions = engine.open(PROMPT, seed=0).fork([1, 2])
    with pytest.raises(KeyError, match="tool"):
        engine.run([sessions[0].generate(Sampling(max_tokens=20)), fails(sessions[1])])
    assert len(turn(engine, engine.open(PROMPT, seed=3)).segment.ids) == 6


def test_refresh_keeps_sessions(engine: Engine) -> None:
    session = engine.open(PROMPT, seed=1)
    first = turn(engine, session, temperature=0)
    engine.refresh()
    assert turn(engine, engine.open(PROMPT, seed=1), temperature=0).segment.ids == first.segment.ids
    assert len(turn(engine, session).segment.ids) == 6


def test_native_and_reference_agree() -> None:
    """The same draws, two implementations: the same tokens, greedy and sampled, and log-probs to 1e-4."""
    native, reference = make("native"), make("reference")
    for temperature in (0, 0.7):
        pair = []
        for engine in (native, reference):
            group = engine.open(PROMPT, seed=0).fork([1, 2, 3])
            group[1].extend([11, 12, 13])
            settings = Sampling(max_tokens=20, temperature=temperature, stop_ids=frozenset({3}), top_p=0.95)
            pair.append(engine.run([session.generate(settings) for session in group]))
        for ours, theirs in zip(*pair, strict=True):
            assert ours.segment.ids == theirs.segment.ids
            assert ours.segment.logprobs == pytest.approx(theirs.segment.logprobs, abs=1e-4)
            assert ours.finish == theirs.finish
