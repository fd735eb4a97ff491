"""The reference engine: sampling values come from us alone; and which models it is for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from engine_models import VOCAB, full_logprobs, tiny
from renshu.engines import Sampling
from renshu.engines.choose import engine_for
from renshu.engines.modes import NO_LIMIT
from renshu.engines.native import NativeEngine
from renshu.engines.reference import ReferenceEngine

TRAP = GenerationConfig(
    do_sample=True,
    temperature=0.1,
    top_k=1,
    repetition_penalty=1.05,
    no_repeat_ngram_size=1,
    min_new_tokens=30,
    max_length=7,
    eos_token_id=[5],
    suppress_tokens=[6, 7],
    num_beams=3,
    forced_eos_token_id=9,
)


def rollout(model: Any, seeds: range) -> list[tuple[int, ...]]:
    engine = ReferenceEngine(model)
    sampling = Sampling(max_tokens=16)
    sessions = engine.open([10, 11, 12], seed=0).fork(seeds)
    return [g.segment.ids for g in engine.run([session.generate(sampling) for session in sessions])]


@pytest.mark.parametrize("make", [ReferenceEngine, NativeEngine])
def test_generation_config_of_the_checkpoint_never_leaks(make: Any) -> None:
    """Values left at their defaults must not be filled in from the checkpoint: case e19."""
    model = tiny()
    model.generation_config = TRAP
    engine = make(model)
    sampling = Sampling(max_tokens=16)
    sessions = engine.open([10, 11, 12], seed=0).fork(range(8))
    turns = [g.segment for g in engine.run([session.generate(sampling) for session in sessions])]
    assert [turn.ids for turn in turns] == rollout(tiny(), range(8))
    assert len({turn.ids for turn in turns}) == 8
    for turn in turns:
        expected = full_logprobs(tiny(), (10, 11, 12, *turn.ids))[2:]
        torch.testing.assert_close(torch.tensor(turn.logprobs), expected, atol=1e-4, rtol=0)
    assert model.generation_config is TRAP


def test_generation_config_does_not_leak_through_an_adapter_either() -> None:
    peft = pytest.importorskip("peft")
    model = tiny()
    model.generation_config = TRAP
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"]))  # starts as zero
    assert rollout(adapted, range(4)) == rollout(tiny(), range(4))
    assert model.generation_config is TRAP


def test_seeds_of_the_process_do_not_matter_and_seeds_of_sessions_do() -> None:
    """Case e20: not one stream by rank, but one by session."""
    torch.manual_seed(1)
    first = rollout(tiny(), range(6))
    torch.manual_seed(2)
    assert rollout(tiny(), range(6)) == first
    assert len({*first, *rollout(tiny(), range(6, 12))}) == 12


def test_batches_are_bounded_and_rows_do_not_disturb_each_other() -> None:
    model = tiny(dtype=torch.float64)
    model.set_attn_implementation("sdpa")  # transformers' eager attention makes NaN of float64 padding
    prompts = [[10], [10, 11, 12, 13], [20] * 9, [3, 4]]

    def turns(rows: int) -> list[tuple[int, ...]]:
        engine = ReferenceEngine(model, rows=rows)
        sessions = [engine.open(prompt, seed=seed) for seed, prompt in enumerate(prompts)]
        sampling = [Sampling(max_tokens=n + 2) for n in range(4)]
        pairs = zip(sessions, sampling, strict=True)
        return [g.segment.ids for g in engine.run([session.generate(s) for session, s in pairs])]

    assert turns(1) == turns(3) == turns(64)
    assert [len(ids) for ids in turns(64)] == [2, 3, 4, 5]


def mamba() -> Any:
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "mamba2",
        vocab_size=VOCAB,
        hidden_size=16,
        num_hidden_layers=2,
        state_size=4,
        num_heads=4,
        head_dim=8,
        n_groups=1,
        chunk_size=8,
        initializer_range=0.3,
    )
    return AutoModelForCausalLM.from_config(config).eval()


def test_stateful_models_get_the_reference_engine_and_others_the_native() -> None:
    assert isinstance(engine_for(tiny()), NativeEngine)
    assert engine_for(tiny()).context == 512
    model = mamba()
    assert engine_for(model).context == NO_LIMIT  # a recipe cannot name a context
    engine = engine_for(model, context=64)
    assert isinstance(engine, ReferenceEngine)
    sessions = [engine.open([10, 11, 12], seed=1), engine.open([20, 21, 22, 23, 24], seed=2)]
    turns = engine.run([session.generate(Sampling(max_tokens=6)) for session in sessions])
    for session, turn in zip(sessions, turns, strict=True):
        expected = full_logprobs(model, session.ids)[-6:]
        torch.testing.assert_close(torch.tensor(turn.segment.logprobs), expected, atol=1e-4, rtol=0)
