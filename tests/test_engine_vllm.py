"""The vLLM engine against a server of the same protocol, which samples with our own model."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec

import pytest
import torch

from engine_models import full_logprobs, tiny
from renshu.engines import EngineStats, Sampling
from renshu.engines.choose import engine_for
from renshu.engines.native import NativeEngine
from renshu.engines.settings import EngineSettings
from renshu.engines.vllm import VllmEngine
from renshu.engines.vllm_server import mode_of, read_card, read_turn, require_exact
from renshu.errors import ConfigError, ContextOverflow, EngineError, InfrastructureError
from renshu.models.settings import AdapterSettings
from vllm_kit import PROMPT, FakeVllm, Wire, adapted, connect, fake, scramble, serving, turns


@pytest.fixture
def model():
    return adapted()


def test_greedy_turns_and_their_logprobs_are_those_of_the_native_engine(model):
    sampling = Sampling(max_tokens=9, temperature=0, stop_ids=frozenset({3}))
    with serving(fake(mode="raw")) as server:
        theirs = turns(connect(server, model), sampling)
    ours = turns(NativeEngine(model), sampling)
    for one, other in zip(ours, theirs, strict=True):
        for mine, its in zip(one, other, strict=True):
            assert its.segment.ids == mine.segment.ids
            assert its.finish == mine.finish
            assert its.segment.logprobs == pytest.approx(mine.segment.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("processed", {"temperature": 0.7}),
        ("processed", {"temperature": 1.0}),
        ("raw", {"temperature": 1.0, "top_p": 0.8, "top_k": 20, "min_p": 0.01}),
    ],
)
def test_sampled_logprobs_are_scaled_and_untruncated_as_the_trainer_has_them(model, mode, settings):
    with serving(fake(mode=mode)) as server:
        engine = connect(server, model)
        assert engine.mode == mode
        session = engine.open(PROMPT, seed=4)
        (generated,) = engine.run([session.generate(Sampling(max_tokens=12, **settings))])
    own = full_logprobs(model, session.ids, settings["temperature"])[len(PROMPT) - 1 :]
    assert generated.segment.logprobs == pytest.approx(own.tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("mode", "settings", "reason"),
    [
        (
            "raw",
            {"temperature": 0.7},
            r"of temperature 1, not 0.7: start it with --logprobs-mode processed_log",
        ),
        ("raw", {"temperature": 0.7, "top_k": 3}, r"and turn top_p, top_k and min_p off"),
        (
            "processed",
            {"top_p": 0.9},
            r"have bent: turn these off, or start it with --logprobs-mode raw_logp",
        ),
        ("processed", {"top_p": 0.9, "temperature": 0.7}, r"have bent: turn these off$"),
        ("processed", {"min_p": 0.1}, r"have bent"),
    ],
)
def test_logprobs_that_the_server_cannot_tell_are_refused(mode, settings, reason):
    with pytest.raises(ConfigError, match=reason):
        require_exact(mode, Sampling(4, **settings))


def test_logprobs_that_every_server_tells():
    for mode in ("raw", "processed"):
        require_exact(mode, Sampling(4))
        require_exact(mode, Sampling(4, temperature=0, top_k=3))
    require_exact("raw", Sampling(4, top_k=3))
    require_exact("processed", Sampling(4, temperature=0.7))


def test_modes():
    assert mode_of({1: -1.0, 2: -2.0}, {1: -0.5, 2: -1.5, 9: -4}) == "raw"
    assert mode_of({1: -1.0, 2: -2.0}, {1: -0.2, 2: -2.2}) == "processed"
    with pytest.raises(EngineError, match=r"scale by 1.50"):
        mode_of({1: -1.0, 2: -2.0}, {1: -0.5, 2: -2.0})
    with pytest.raises(EngineError, match="tell nothing"):
        mode_of({1: -1.0}, {1: -1.0})


def test_a_request_says_every_sampling_value():
    told = fake(mode="raw")
    with serving(told) as server:
        engine = connect(server, adapted())
        session = engine.open(PROMPT, seed=4)
        settings = Sampling(5, 1.0, top_p=0.9, top_k=7, min_p=0.02, stop_ids=frozenset({9, 3}))
        engine.run([session.generate(settings)])
    body = told.log[-1][1]
    assert {key: body[key] for key in body if key not in ("seed", "model")} == {
        "prompt": PROMPT,
        "max_tokens": 5,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.02,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop_token_ids": [3, 9],
        "ignore_eos": True,
        "n": 1,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
    }
    assert 0 <= body["seed"] < 2**63


def test_each_turn_has_its_own_seed_and_a_session_repeats(model):
    sampling = Sampling(max_tokens=9, temperature=1.5)
    told = fake()
    with serving(told) as server:
        engine = connect(server, model)
        first, again = turns(engine, sampling), turns(engine, sampling)
    assert [[t.segment for t in pair] for pair in first] == [[t.segment for t in pair] for pair in again]
    seeds = [body["seed"] for path, body in told.log if path == "/v1/completions" and body["seed"]]
    assert len(set(seeds)) == 6
    assert len({pair[0].segment.ids for pair in first}) == 3


def test_another_model_is_noticed_before_the_first_episode(model):
    with serving(FakeVllm(tiny(initializer_range=0.6))) as server:
        engine = connect(server, model)
        with pytest.raises(EngineError, match=r"disagree by [\d.]+ nats a token"):
            engine.run([engine.open(PROMPT, seed=0).generate(Sampling(2))])


def test_logits_instead_of_logprobs_are_noticed(model):
    told = fake(mode="raw")
    logprobs = told._logprobs
    told._logprobs = lambda *a: ([value + 7 for value in logprobs(*a)[0]], logprobs(*a)[1])
    with serving(told) as server:
        engine = connect(server, model)
        with pytest.raises(EngineError, match=r"disagree by 7 nats a token: .*--logprobs-mode"):
            engine.run([engine.open(PROMPT, seed=0).generate(Sampling(2))])


def test_the_context_is_the_smaller_one(model):
    with serving(fake(context=40)) as server:
        engine = connect(server, model)
        assert engine.context == 40
        with pytest.raises(ContextOverflow, match="do not fit into the context of 40"):
            engine.open([1] * 41, seed=0)
        session = engine.open([1] * 37, seed=0)
        (cut,) = engine.run([session.generate(Sampling(9))])
        assert (len(cut.segment.ids), cut.finish) == (3, "length")
        (none,) = engine.run([session.generate(Sampling(9))])
        assert (none.segment.ids, none.segment.logprobs, none.finish) == ((), (), "length")


def test_counting_tells_what_the_cache_spared(model):
    with serving(fake(details=True)) as server:
        engine = connect(server, model)
        session = engine.open(PROMPT, seed=1)
        engine.run([session.generate(Sampling(6))])
        session.extend([1, 2])
        engine.run([session.generate(Sampling(6))])
    # 5 + 5 fed; of the second prompt of 13 the first 10 were known: 3 + 5 fed
    assert engine.stats == EngineStats(computed=10 + 8, naive=10 + 18, sampled=12, untold=0)


def test_without_details_what_was_computed_is_an_upper_bound_that_says_so(model):
    with serving(fake()) as server:
        engine = connect(server, model)
        engine.run([engine.open(PROMPT, seed=1).generate(Sampling(6))])
    assert engine.stats == EngineStats(computed=10, naive=10, sampled=6, untold=5)


def test_a_watcher_cuts_the_turn(model):
    with serving(fake()) as server:
        engine = connect(server, model)
        session, seen = engine.open(PROMPT, seed=1), []

        def watch(token, logprob):
            seen.append((token, logprob))
            return len(seen) == 3

        (cut,) = engine.run([session.generate(Sampling(9), watch)])
    assert [*zip(cut.segment.ids, cut.segment.logprobs, strict=True)] == seen
    assert (len(seen), cut.finish, session.ids) == (3, "length", [*PROMPT, *cut.segment.ids])


def test_a_server_that_dies_ends_every_turn_with_a_sentence(model):
    with serving(fake()) as server:
        engine = connect(server, model, at_once=2)
        engine.endpoint.patience = type(engine.endpoint.patience)(2, 5.0, connecting=0.2, pause=0.05)
        engine.run([engine.open(PROMPT, seed=1).generate(Sampling(2))])
    began = time.monotonic()

    async def caught(session):
        try:
            await session.generate(Sampling(2))
        except (EngineError, InfrastructureError) as error:
            return f"{type(error).__name__}: {error}"

    errors = engine.run([caught(session) for session in engine.open(PROMPT, seed=0).fork(range(8))])
    assert time.monotonic() - began < 30
    assert sum("nobody listens there" in error for error in errors) >= 5
    assert sum("EngineError" in error and "does not answer" in error for error in errors) >= 2
    engine.refresh()
    with pytest.raises(InfrastructureError, match="nobody listens there"):
        engine.run([engine.open(PROMPT, seed=1).generate(Sampling(2))])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"token_ids": None}, "tells no token ids"),
        ({"prompt_token_ids": [1, *PROMPT]}, r"read another prompt than it was sent \(6 tokens, not 5\)"),
        ({"finish_reason": "stop"}, "ended a turn after token .* which is no stop token"),
        ({"token_ids": [], "logprobs": {"token_logprobs": []}}, "sampled nothing"),
        ({"token_ids": [1], "logprobs": {"token_logprobs": [float("nan")]}}, "no numbers"),
    ],
)
def test_answers_that_cannot_be_trained_on_are_errors(model, change, reason):
    told = fake()
    with serving(told) as server:
        engine = connect(server, model)
        engine.run([engine.open(PROMPT, seed=1).generate(Sampling(2))])
        answer = told.do_v1_completions

        def changed(body):
            completed = answer(body)
            completed["choices"][0] |= change
            return json.loads(json.dumps(completed))

        told.do_v1_completions = changed
        with pytest.raises(EngineError, match=reason):
            engine.run([engine.open(PROMPT, seed=1).generate(Sampling(2))])


def test_shapes_of_answers():
    with pytest.raises(ValueError, match="broken off: abort"):
        read_turn(
            {
                "choices": [
                    {
                        "token_ids": [],
                        "prompt_token_ids": [],
                        "finish_reason": "abort",
                        "logprobs": {"token_logprobs": []},
                    }
                ]
            }
        )
    told = {"token_ids": [1], "prompt_token_ids": [], "logprobs": {"token_logprobs": [0.0, 0.0]}}
    with pytest.raises(ValueError, match="1 token ids but 2"):
        read_turn({"choices": [told]})
    assert read_card({"data": [{"id": "a", "parent": "b"}, {"id": "b", "max_model_len": 9}]}) == ("b", 9)
    with pytest.raises(ValueError, match="serves no model"):
        read_card({"data": []})


def test_settings_that_do_not_go_together(model):
    with pytest.raises(ConfigError, match="url: only an engine of kind vllm has a server"):
        EngineSettings.from_dict({"url": "http://127.0.0.1:1"}, source="r.yaml")
    with pytest.raises(ConfigError, match="sync: adapter, but the model has none"):
        VllmEngine(tiny(), EngineSettings(kind="vllm", sync="adapter"))
    with pytest.raises(ConfigError, match="weights sends a model without an adapter"):
        VllmEngine(model, EngineSettings(kind="vllm", sync="weights"))
    model.peft_config["default"].use_dora = True
    with pytest.raises(ConfigError, match="no adapters with DoRA"):
        VllmEngine(model, EngineSettings(kind="vllm"))


def test_weights_go_from_gpu_to_gpu():
    with serving(fake(wire=Wire())) as server:
        engine = connect(server, tiny())
        with pytest.raises(EngineError, match="goes from GPU to GPU, and the model is on cpu"):
            engine.run([engine.open(PROMPT, seed=1).generate(Sampling(2))])


def test_nobody_there_is_told_when_the_engine_is_made(model, monkeypatch):
    monkeypatch.setattr("renshu.engines.vllm.Patience", lambda **k: _impatient(**k))
    with pytest.raises(InfrastructureError, match=r"http://127.0.0.1:9: nobody listens there"):
        engine_for(model, EngineSettings(kind="vllm", url="http://127.0.0.1:9/v1"))


def _impatient(**settings):
    from renshu.engines.openai_client import Patience

    return Patience(**settings, connecting=0.1, pause=0.01)


@pytest.mark.gpu
@pytest.mark.skipif(find_spec("vllm") is None or not torch.cuda.is_available(), reason="needs vllm and a GPU")
def test_a_real_server():
    """Started as docs/guide-vllm.md says; its address is in RENSHU_VLLM, its model in RENSHU_VLLM_MODEL."""
    import os

    from renshu.models.load import load
    from renshu.models.settings import ModelSettings

    url, name = os.environ["RENSHU_VLLM"], os.environ["RENSHU_VLLM_MODEL"]
    loaded = load(ModelSettings(name=name, adapter=AdapterSettings(rank=8)))
    engine = VllmEngine(loaded.model, EngineSettings(kind="vllm", url=url))
    prompt = loaded.tokenizer.encode("The capital of France is")
    sampling = Sampling(max_tokens=12, temperature=0)
    (theirs,) = engine.run([engine.open(prompt, seed=0).generate(sampling)])
    (ours,) = (native := NativeEngine(loaded.model)).run([native.open(prompt, seed=0).generate(sampling)])
    assert theirs.segment.logprobs == pytest.approx(ours.segment.logprobs, abs=0.1)
    scramble(loaded.model, 0.02)
    engine.refresh()
    session = engine.open(prompt, seed=1)
    (generated,) = engine.run([session.generate(Sampling(max_tokens=12))])
    own = full_logprobs(loaded.model, session.ids)[len(prompt) - 1 :]
    assert generated.segment.logprobs == pytest.approx(own.tolist(), abs=0.2)
