"""The native engine against one ordinary forward pass, a brute-force trie, and itself at other widths."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_models import SHAPES, VOCAB, counting, full_logprobs, tiny, trie_size
from renshu.engines import Sampling, Session
from renshu.engines.native import NativeEngine
from renshu.errors import EngineError
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
@settings(max_examples=8)
def test_every_token_is_computed_once(seed: int) -> None:
    model = tiny()
    engine = NativeEngine(model)
    with counting(model) as fed:
        journal = play(engine, seed)
    assert sum(fed) == engine.stats.computed == trie_size(journal.fed())
    assert sum(fed) < engine.stats.naive


async def one_turn(session: Session, sampling: Sampling) -> Segment:
    segment = (await session.generate(sampling)).segment
    session.close()
    return segment


def test_an_equal_prompt_costs_nothing_even_after_its_session_was_closed() -> None:
    engine = NativeEngine(tiny())
    prompt, sampling = list(range(5, 45)), Sampling(max_tokens=3)
    engine.run([one_turn(engine.open(prompt, seed=1), sampling)])
    assert engine.stats.computed == 40 + 2
    engine.run([one_turn(engine.open(prompt, seed=2), Sampling(max_tokens=1)) for _ in range(3)])
    assert engine.stats.computed == 42


def test_prompts_share_what_they_have_in_common_across_tasks_and_time() -> None:
    engine = NativeEngine(tiny())
    system = list(range(5, 45))
    for later, prompt in enumerate([[*system, 1, 2], [*system, 1, 7, 8], [*system[:20], 1]]):
        engine.run([one_turn(engine.open(prompt, seed=1), Sampling(max_tokens=1))])
        assert engine.stats.computed == 42 + (0, 2, 3)[later]


def test_one_pass_feeds_the_shared_prompt_and_the_next_all_tasks() -> None:
    model = tiny()
    engine = NativeEngine(model)
    system = list(range(5, 45))
    tasks = [engine.open([*system, task, 1], seed=task) for task in (5, 6, 7)]
    with counting(model) as fed:
        engine.run([one_turn(session, Sampling(max_tokens=1)) for session in tasks])
    assert fed == [40, 6]


def test_equal_members_of_a_group_are_computed_once_until_they_part() -> None:
    model = tiny()
    engine = NativeEngine(model)
    members = engine.open(list(range(5, 45)), seed=0).fork(range(8))
    with counting(model) as fed:
        turns = engine.run([one_turn(session, Sampling(max_tokens=10, temperature=0)) for session in members])
    assert fed == [40] + [1] * 9
    assert len({turn.ids for turn in turns}) == 1


def test_a_session_that_lags_behind_its_equal_computes_sampled_tokens_but_no_history() -> None:
    """Logits are kept where prompts and answers end, not after every sampled token."""
    engine = NativeEngine(tiny())
    greedy, answer = Sampling(max_tokens=5, temperature=0), list(range(20, 30))

    async def dialogue(session: Session) -> None:
        await session.generate(greedy)
        session.extend(answer)
        await session.generate(greedy)

    prompt = list(range(5, 45))
    engine.run([dialogue(engine.open(prompt, seed=1))])
    assert engine.stats.computed == 40 + 5 + 10 + 4
    engine.run([dialogue(engine.open(prompt, seed=1))])
    assert engine.stats.computed == 59 + 4 + 4  # the fifth token of the first turn is history by then


def test_naive_counts_every_history_again() -> None:
    engine = NativeEngine(tiny())

    async def dialogue(session: Session) -> None:
        await session.generate(Sampling(max_tokens=4))
        session.extend([7, 8, 9])
        await session.generate(Sampling(max_tokens=2))

    engine.run([dialogue(session) for session in engine.open(list(range(10)), seed=0).fork([1, 2])])
    assert engine.stats.naive == 2 * ((10 + 3) + (17 + 1))
    assert engine.stats.sampled == 2 * 6


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_tokens_do_not_depend_on_concurrency(kind: str) -> None:
    """Alone, in waves of 7 or all 64 at once: the same tokens in float64 at temperature 1."""
    model = tiny(kind, dtype=torch.float64)
    system = list(range(5, 45))

    async def dialogue(session: Session, task: int) -> list[int]:
        for turn in range(2):
            await session.generate(Sampling(max_tokens=4 + task % 5, stop_ids=STOP))
            session.extend(tool(session.ids, noise=task + turn))
        session.close()
        return session.ids

    def wave(engine: NativeEngine, tasks: Sequence[int]) -> list[list[int]]:
        sessions = [engine.open([*system, task % 8, task % 3], seed=task) for task in tasks]
        return engine.run([dialogue(session, task) for session, task in zip(sessions, tasks, strict=True)])

    def rollout(width: int) -> list[list[int]]:
        engine = NativeEngine(model)
        waves = [range(first, min(first + width, 64)) for first in range(0, 64, width)]
        return [ids for tasks in waves for ids in wave(engine, tasks)]

    together = rollout(64)
    assert rollout(7) == together
    assert rollout(1) == together
    assert len({tuple(ids) for ids in together}) == 64


def test_long_paths_grow_the_slots_and_long_prompts_come_in_pieces() -> None:
    oracle = tiny(max_position_embeddings=2048)
    model = tiny(max_position_embeddings=2048)
    engine = NativeEngine(model)
    prompt = [random.Random(0).randrange(VOCAB) for _ in range(1100)]
    (session,) = engine.open(prompt, seed=0).fork([1])
    with counting(model) as fed:
        segment = engine.run([one_turn(session, Sampling(max_tokens=150))])[0]
    assert fed == [512, 512, 76] + [1] * 149
    expected = full_logprobs(oracle, session.ids)[1099:]
    torch.testing.assert_close(torch.tensor(segment.logprobs), expected, atol=1e-4, rtol=0)


def test_slots_are_used_again_and_survivors_move_together() -> None:
    oracle = tiny()
    engine = NativeEngine(tiny())
    journal = Journal(engine)

    async def last(name: int, session: Session) -> None:
        await journal.turn(name, session, Sampling(max_tokens=3 if name % 16 else 60))
        session.close()

    prompt = list(range(5, 45))
    for wave in (range(64), range(64, 128)):
        sessions = engine.open(prompt, seed=0).fork(wave)
        engine.run([last(name, session) for name, session in zip(wave, sessions, strict=True)])
        assert engine._prefixes.rows.slots == 64
    assert not engine._prefixes.rows.owners
    assert journal.check_logprobs(oracle) == 2 * (60 * 3 + 4 * 60)


def test_refresh_forgets_old_weights_and_sessions_go_on_with_the_new() -> None:
    model, oracle = tiny(), tiny()
    engine = NativeEngine(model)
    session = engine.open(list(range(5, 45)), seed=0)

    async def turn() -> Segment:
        return (await session.generate(Sampling(max_tokens=5))).segment

    engine.run([turn()])
    before = len(session.ids)
    with torch.no_grad():
        for new, old in zip(model.parameters(), oracle.parameters(), strict=True):
            new.mul_(1.1)
            old.mul_(1.1)
    engine.refresh()
    (segment,) = engine.run([turn()])
    assert engine.stats.computed == (40 + 4) + (45 + 4)
    expected = full_logprobs(oracle, session.ids)[before - 1 :]
    torch.testing.assert_close(torch.tensor(segment.logprobs), expected, atol=1e-4, rtol=0)


def test_sampling_is_without_dropout_and_leaves_every_module_in_its_mode() -> None:
    model = tiny(attention_dropout=0.5)
    engine = NativeEngine(model)
    model.train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    session = engine.open(list(range(5, 15)), seed=0)
    (segment,) = engine.run([one_turn(session, Sampling(max_tokens=8))])
    assert [module.training for module in model.modules()] == modes
    expected = full_logprobs(tiny(), session.ids)[9:]
    torch.testing.assert_close(torch.tensor(segment.logprobs), expected, atol=1e-4, rtol=0)


def test_the_adapter_is_part_of_the_policy() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.5
    )
    torch.manual_seed(1)
    model = peft.get_peft_model(tiny(), config)
    engine = NativeEngine(model)
    session = engine.open(list(range(5, 15)), seed=0)
    (segment,) = engine.run([one_turn(session, Sampling(max_tokens=8))])
    model.eval()
    adapted = full_logprobs(model, session.ids)[9:]
    torch.testing.assert_close(torch.tensor(segment.logprobs), adapted, atol=1e-4, rtol=0)
    assert (adapted - full_logprobs(tiny(), session.ids)[9:]).abs().max() > 0.01


def test_logits_that_are_not_numbers_are_an_error() -> None:
    model = tiny()
    engine = NativeEngine(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = float("nan")
    with pytest.raises(EngineError, match="NaN"):
        engine.run([one_turn(engine.open([5, 7], seed=0), Sampling(max_tokens=2))])


def test_other_models_are_refused_with_the_reason() -> None:
    class Recurrent(torch.nn.Module):
        _is_stateful = True

    with pytest.raises(EngineError, match="recurrent state.*reference engine"):
        NativeEngine(Recurrent())
