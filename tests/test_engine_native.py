"""The native engine against one ordinary forward pass, a brute-force trie, and itself at other widths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from engine_models import SHAPES, VOCAB, counting, full_logprobs, tiny, trie_size
from hypothesis import given
from hypothesis import strategies as st

from renshu.engines import Sampling, Session
from renshu.engines.native import NativeEngine
from renshu.types import Segment

STOP = frozenset({3, 4})


def tool(ids: Sequence[int], noise: int) -> list[int]:
    """A tool whose answer depends on the history, and on the session as well where noise is not 0."""
    answer = random.Random(str((tuple(ids), noise)))
    return [answer.randrange(5, VOCAB) for _ in range(answer.randrange(1, 12))]


class Journal:
    """What happened in all sessions of a test: segments by session, for the checks afterwards."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine
        self.segments: dict[int, list[tuple[int, Segment, float]]] = {}  # (start, segment, temperature)
        self.ids: dict[int, list[int]] = {}

    async def turn(self, name: int, session: Session, sampling: Sampling) -> None:
        start = len(session.ids)
        generated = await session.generate(sampling)
        assert tuple(session.ids[start:]) == generated.segment.ids
        temperature = sampling.temperature or 1.0
        self.segments.setdefault(name, []).append((start, generated.segment, temperature))
        self.ids[name] = session.ids

    def fed(self) -> list[list[int]]:
        """The tokens that had to be computed: nothing after the last sampled one."""
        return [ids[:-1] for ids in self.ids.values()]

    def check_logprobs(self, oracle: Any) -> int:
        checked = 0
        for name, segments in self.segments.items():
            for start, segment, temperature in segments:
                full = full_logprobs(oracle, self.ids[name], temperature)
                expected = full[start - 1 : start - 1 + len(segment.ids)]
                torch.testing.assert_close(
                    torch.tensor(segment.logprobs, dtype=full.dtype), expected, atol=1e-4, rtol=0
                )
                checked += len(segment.ids)
        return checked


async def episode(journal: Journal, name: int, session: Session, noise: int, turns: int, forks: bool) -> None:
    """Turns with tool answers of different lengths between them; halfway it may fork into two."""
    await journal.turn(name, session, Sampling(max_tokens=6, stop_ids=STOP, temperature=0.8))
    if turns > 1:
        children = session.fork([name + 1000]) if forks else []
        for child in children:
            child.extend(tool(child.ids, noise=name + 1000))
        session.extend(tool(session.ids, noise))
        await asyncio.gather(
            *(episode(journal, name + 1000, child, 0, turns - 1, False) for child in children),
            episode(journal, name, session, noise, turns - 1, False),
        )
    session.close()


def play(engine: NativeEngine, seed: int, *, tasks: int = 4, group: int = 4, noisy: bool = True) -> Journal:
    """Groups of multi-turn, forking episodes behind one system prompt; some answers equal within a group."""
    shape = random.Random(seed)
    system = [shape.randrange(VOCAB) for _ in range(shape.choice([2, 40]))]
    journal = Journal(engine)
    episodes = []
    for task in range(tasks):
        prompt = system + [shape.randrange(VOCAB) for _ in range(shape.randrange(1, 60))]
        root = engine.open(prompt, seed=seed + task)
        for member, session in enumerate(root.fork([seed + 100 * task + n for n in range(group)])):
            noise = shape.randrange(2) * (member + 1) if noisy else 0
            name = group * task + member
            turns = shape.randrange(1, 5)
            episodes.append(episode(journal, name, session, noise, turns, forks=member % 2 == 0))
        root.close()
    engine.run(episodes)
    return journal


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("seed", [1, 2])
def test_logprobs_are_those_of_one_full_forward(kind: str, seed: int) -> None:
    oracle = tiny(kind)
    journal = play(NativeEngine(tiny(kind)), seed)
    assert journal.check_logprobs(oracle) > 100


@given(seed=st.integers(0, 10_000))
def test_every_token_is_computed_once(seed: int) -> None:
    model = tiny()
    engine = NativeEngine(model)
    with counting(model) as fed:
        journal = play(engine, seed)
    assert sum(fed) == engine.stats.computed == trie_size(journal.fed())
    assert sum(fed) < engine.stats.naive
