"""Merging an adapter: the same model without it, never a rounded one."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from renshu.chat import ChatFormat
from renshu.engines.choose import engine_for
from renshu.engines.protocol import Sampling
from renshu.envs import Interaction
from renshu.envs.flights import FlightDesk
from renshu.errors import ModelError
from renshu.models import quantised
from renshu.models.adapters import adapter_off, add_adapter
from renshu.models.load import load
from renshu.models.merge import logprobs_on, merge, require_same
from renshu.models.settings import AdapterSettings, ModelSettings

PROBES = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8]]


def trained(base, size=0.02):
    """`base` with a small adapter that changes something."""
    adapted = add_adapter(copy.deepcopy(base), AdapterSettings(rank=4, alpha=8))
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=size)
    return adapted.eval()


@pytest.fixture(scope="module")
def base():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.tensor(PROBES[:1])).logits


def test_the_merged_model_computes_the_same_without_an_adapter(base):
    adapted = trained(base)
    wanted = logits(adapted)
    assert not torch.allclose(wanted, logits(base), atol=1e-3)
    whole = merge(adapted, PROBES).model
    assert type(whole) is LlamaForCausalLM
    assert torch.allclose(logits(whole), wanted, atol=1e-5)


def test_a_model_without_adapter_is_refused(base):
    with pytest.raises(ModelError, match="no adapter to merge"):
        merge(base, PROBES)


def test_quantised_weights_are_refused(base, monkeypatch):
    adapted = trained(base)
    monkeypatch.setattr(adapted.get_base_model(), "is_quantized", True, raising=False)
    with pytest.raises(ModelError, match="quantised, and merging would round the training away"):
        merge(adapted, PROBES)


def test_rounding_the_delta_away_is_refused(base, monkeypatch):
    """What merging into four bits does: the weights go back to a grid coarser than the adapter's delta."""
    adapted = trained(base, size=0.002)

    def rounded(*_, **__):
        whole = copy.deepcopy(base)
        for parameter in whole.parameters():
            step = parameter.detach().abs().max() / 7  # 4 bits: 15 levels
            parameter.data = (parameter.data / step).round() * step
        return whole

    monkeypatch.setattr(type(adapted.base_model), "merge_and_unload", rounded)
    with pytest.raises(ModelError, match=r"merging would lose what was trained: log-probs move by"):
        merge(adapted, PROBES)


@pytest.mark.parametrize(("gap", "refused"), [(0.0, False), (0.009, False), (0.011, True)])
def test_a_tenth_of_the_effect_may_get_lost(gap, refused):
    without, before = torch.zeros(4, 8), torch.full((4, 8), 0.1)
    if refused:
        with pytest.raises(ModelError, match="by 0.011 nats on average, training moved them by 0.1"):
            require_same(before + gap, before, without)
    else:
        require_same(before + gap, before, without)


def test_an_adapter_without_effect_merges():
    same = torch.zeros(2, 3)
    require_same(same + 1e-6, same, same)
    with pytest.raises(ModelError):
        require_same(same + float("nan"), same, same)


@pytest.fixture(scope="module")
def prompts():
    """50 prompts of the embedded model's environment, in its format."""
    loaded = load(ModelSettings())
    chat = ChatFormat(loaded.tokenizer, eos_ids=loaded.eos_ids)
    tasks = FlightDesk.tasks.split("test")[:50]
    openings = [Interaction(FlightDesk(), task) for task in tasks]
    return [chat.prompt(opening.messages, opening.schemas) for opening in openings], chat.stop_ids


def answers(model, prompts, stop_ids):
    """Greedy turns of the native engine."""
    engine = engine_for(model)

    async def turn(ids):
        session = engine.open(ids, seed=0)
        return (await session.generate(Sampling(max_tokens=16, temperature=0, stop_ids=stop_ids))).segment.ids

    return engine.run([turn(ids) for ids in prompts])


@pytest.mark.parametrize("kind", ["lora", "rslora", "dora", "qlora"])
def test_merged_greedy_answers_are_the_adapters_on_50_prompts(prompts, kind):
    """And logits are within 1e-3 of the adapter's, in four bits of those of the four-bit model itself."""
    ids, stop_ids = prompts
    torch.manual_seed(0)
    model = load(ModelSettings(adapter={"kind": kind, "rank": 4, "alpha": 8})).model
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.02)
    with adapter_off(model):
        without = answers(model, ids, stop_ids)
    wanted, before = answers(model, ids, stop_ids), logprobs_on(model, ids[:4])
    assert len({tuple(answer) for answer in wanted}) > 20
    changed = sum(answer != plain for answer, plain in zip(wanted, without, strict=True))
    assert changed > 25  # the adapter has a real effect
    merged = merge(model, ids[:4])
    assert not quantised.layers(merged.model)
    assert (merged.merged - before).abs().max() < 1e-3
    assert answers(merged.model, ids, stop_ids) == wanted


def test_peft_itself_would_round_a_four_bit_merge_away(prompts):
    """Why weights are dequantised first: merged on their grid, log-probs move far beyond 1e-3."""
    ids, _ = prompts
    torch.manual_seed(0)
    model = load(ModelSettings(adapter="qlora")).model
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.002)
    before = logprobs_on(model, ids[:2])
    rounded = copy.deepcopy(model).merge_and_unload(safe_merge=True)
    assert (logprobs_on(rounded, ids[:2]) - before).abs().max() > 0.1
    assert (merge(model, ids[:2]).merged - before).abs().max() < 1e-3
