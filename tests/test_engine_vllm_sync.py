"""New weights on their way to a vLLM server: what arrives is what was trained."""

from __future__ import annotations

import time

import pytest
import torch

from engine_models import tiny
from renshu.engines import Sampling
from renshu.engines.native import NativeEngine
from renshu.errors import EngineError
from vllm_kit import PROMPT, Wire, adapted, connect, fake, scramble, serving, turns


@pytest.fixture
def model():
    return adapted()


def test_the_adapter_that_arrives_is_the_one_that_was_trained(model, tmp_path):
    told = fake()
    sampling = Sampling(max_tokens=12, temperature=0)
    with serving(told) as server:
        engine = connect(server, model, folder=str(tmp_path))
        assert told.adapters == {}
        before = turns(engine, sampling)
        (first,) = told.adapters
        turns(engine, sampling)
        assert list(told.adapters) == [first]  # nothing changed, nothing sent
        scramble(model)
        engine.refresh()
        engine.refresh()
        after = turns(engine, sampling)
        (second,) = told.adapters
        came = dict(told.adapters[second].named_parameters())
    assert first != second
    assert [entry.name for entry in tmp_path.iterdir()] == [second]  # the old one is gone
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 28
    assert all(torch.equal(came[name], parameter) for name, parameter in trained.items())
    native = turns(NativeEngine(model), sampling)
    assert [pair[0].segment.ids for pair in after] == [pair[0].segment.ids for pair in native]
    assert before[0][0].segment.ids != after[0][0].segment.ids
    loads = ["/v1/load_lora_adapter", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
    assert told.paths() == ["/v1/models", *loads]
    assert told.log[-1][1]["model"] == second


@pytest.mark.parametrize("packed_at", ["opening", "sending"])
def test_the_weights_that_arrive_are_those_that_were_trained(packed_at):
    wire, model = Wire(packed_at=packed_at), tiny()
    told = fake(wire=wire)
    scramble(model)
    with serving(told) as server:
        engine = connect(server, model, wire)
        turns(engine, Sampling(max_tokens=4, temperature=0))
        scramble(model)
        engine.refresh()
        after = turns(engine, Sampling(max_tokens=9, temperature=0))
    native = turns(NativeEngine(model), Sampling(max_tokens=9, temperature=0))
    assert [pair[1].segment.ids for pair in after] == [pair[1].segment.ids for pair in native]
    weights = dict(model.named_parameters())
    assert told.received.keys() == weights.keys()
    assert all(torch.equal(told.received[name], weights[name]) for name in weights)
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache"]
    meeting = ["/server_info", "/get_world_size", "/init_weight_transfer_engine"]
    assert told.paths() == ["/v1/models", *meeting, *update, *update]
    (opened,) = [body["init_info"] for path, body in told.log if path == "/init_weight_transfer_engine"]
    assert (opened["master_address"], opened["rank_offset"], opened["world_size"]) == ("127.0.0.1", 1, 3)
    assert ("packed" in opened) is (packed_at == "opening")
    sent = next(body["update_info"] for path, body in told.log if path == "/update_weights")
    assert ("packed" in sent) is (packed_at == "sending")
    assert set(sent["dtype_names"]) == {"float32"}


def test_weights_that_cannot_be_sent_end_the_run_and_do_not_hang():
    class Broken(Wire):
        def send(self, tensors):
            raise RuntimeError("NCCL error 2")

    class Stuck(Wire):
        def send(self, tensors):
            time.sleep(30)

    for wire, answer, reason in (
        (Broken(), None, "sending weights failed: RuntimeError: NCCL error 2"),
        (Stuck(), (400, {"error": "out of memory"}), "does not take the weights: out of memory"),
    ):
        told = fake(wire=wire)
        if answer is not None:
            told.do_update_weights = lambda body, answer=answer: answer
        else:
            told.do_update_weights = lambda body: time.sleep(1) or {}
        with serving(told) as server:
            engine = connect(server, tiny(), wire)
            began = time.monotonic()
            with pytest.raises(EngineError, match=reason):
                engine.run([engine.open(PROMPT, seed=0).generate(Sampling(2))])
            assert time.monotonic() - began < 30


def test_a_server_without_weight_transfer_is_told_how_to_start():
    with serving(fake()) as server:
        engine = connect(server, tiny(), Wire())
        with pytest.raises(
            EngineError, match=r"no weight transfer: start it as VLLM_SERVER_DEV_MODE=1 vllm serve"
        ):
            engine.run([engine.open(PROMPT, seed=0).generate(Sampling(2))])


def test_a_server_that_loads_no_adapters_is_told_how_to_start(model):
    told = fake()
    told.do_v1_load_lora_adapter = lambda body: (404, {"detail": "Not Found"})
    with serving(told) as server:
        engine = connect(server, model)
        with pytest.raises(
            EngineError, match=r"be started as VLLM_ALLOW_RUNTIME_LORA_UPDATING=True .*rank 2"
        ):
            engine.run([engine.open(PROMPT, seed=0).generate(Sampling(2))])
