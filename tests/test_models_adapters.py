"""Adapters by name: what each computes, by hand; four bits below one; what is refused."""

import copy
import json
import math

import pytest
import torch

from renshu.errors import ModelError
from renshu.models import quantised
from renshu.models.adapters import adapter_off, fingerprint
from renshu.models.load import load, save
from renshu.models.reference import reference_of
from renshu.models.settings import ModelSettings
from renshu.tree import token_logprobs
from renshu.types import Row
from tiny_models import save_tiny_model

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ROWS = [Row((5, 3, 7, 2), (False, True, True, True)), Row((5, 3, 4, 6), (False, True, True, True))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Weights large enough that an adapter's effect is no rounding."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), template=TEMPLATE, width=64, layers=2)


def logits(model, ids=(5, 6, 7)):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits


def disturb(model, size=0.05):
    """As training would: both matrices, and for dora the lengths."""
    torch.manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.normal_(std=size)
            if "magnitude" in name:
                p.mul_(1.1)


@pytest.mark.parametrize(
    ("kind", "scale"), [("lora", 8 / 4), ("rslora", 8 / math.sqrt(4)), ("dora", 8 / 4), ("qlora", 8 / 4)]
)
def test_each_kind_computes_its_formula(folder, kind, scale):
    adapter = {"kind": kind, "rank": 4, "alpha": 8, "targets": ["down_proj"]}
    model = load(ModelSettings(name=str(folder), adapter=adapter)).model
    disturb(model)
    layer = model.get_base_model().model.layers[0].mlp.down_proj
    x = torch.randn(3, layer.in_features, generator=torch.Generator().manual_seed(0))
    base = copy.deepcopy(model.get_base_model())
    plain = load(ModelSettings(name=str(folder))).model.model.layers[0].mlp.down_proj.weight
    if kind == "qlora":
        quantised.dequantise(base)
        rounded = base.model.layers[0].mlp.down_proj.base_layer.weight
        assert 0.01 < (rounded - plain).norm() / plain.norm() < 0.2  # four bits are coarse
        plain = rounded
    weight = plain + scale * layer.lora_B["default"].weight @ layer.lora_A["default"].weight
    if kind == "dora":
        lengths = 1.1 * plain.norm(dim=1, keepdim=True)
        weight = lengths * weight / weight.norm(dim=1, keepdim=True)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), x @ weight.T, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["lora", "rslora", "dora", "qlora"])
def test_every_kind_comes_back_and_switches_off(folder, tmp_path, kind):
    loaded = load(ModelSettings(name=str(folder), adapter=kind))
    before = logits(loaded.model)
    disturb(loaded.model)
    after = logits(loaded.model)
    assert (after - before).abs().max() > 1e-2
    with adapter_off(loaded.model):
        torch.testing.assert_close(logits(loaded.model), before, atol=1e-5, rtol=1e-5)
    save(loaded, tmp_path / "kept")
    again = load(ModelSettings(name=str(tmp_path / "kept")))  # four bits below it, if trained on four bits
    assert torch.equal(logits(again.model), after)
    assert fingerprint(again.model) == fingerprint(load(ModelSettings(name=str(folder))).model)
    assert ("quantised" in json.loads((tmp_path / "kept/renshu.json").read_text())) == (kind == "qlora")


def test_in_four_bits_all_but_norms_embeddings_and_head(folder):
    model = load(ModelSettings(name=str(folder), adapter="qlora")).model.get_base_model()
    assert len(quantised.layers(model)) == 2 * 7
    whole = {name: p.dtype for name, p in model.named_parameters() if "proj" not in name}
    assert set(whole.values()) == {torch.float32}
    assert {"model.embed_tokens.weight", "model.norm.weight"} <= set(whole)
    states = [layer.weight.quant_state for layer in quantised.layers(model).values()]
    assert all(state.quant_type == "nf4" and state.nested for state in states)


def test_sampler_and_trainer_of_four_bits_agree_and_gradients_flow(folder):
    """Without `settle`, CPUs with AVX512-BF16 repack at the first pass: no gradient below the last layer."""
    model = load(ModelSettings(name=str(folder), adapter="qlora")).model
    disturb(model)
    model.eval()
    with torch.inference_mode():
        sampled = token_logprobs(model, ROWS).logprobs
    model.train()
    trained = token_logprobs(model, ROWS).logprobs
    torch.testing.assert_close(trained.detach(), sampled, atol=1e-6, rtol=0)
    trained.sum().backward()
    gradients = [p.grad for name, p in model.named_parameters() if "lora_" in name]
    assert all(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)


def test_dequantised_weights_answer_as_four_bits_do_also_after_passes(folder):
    model = load(ModelSettings(name=str(folder), adapter="qlora")).model.get_base_model()
    wanted = logits(model)
    quantised.dequantise(model)
    assert not quantised.layers(model)
    assert torch.equal(logits(model), wanted)
    assert not hasattr(model.config, "quantization_config")


def test_the_reference_of_a_trained_four_bit_model_stays_as_it_was(folder):
    model = load(ModelSettings(name=str(folder), adapter="qlora")).model
    disturb(model)
    reference = reference_of(model)
    before = token_logprobs(model, ROWS).logprobs.detach()
    disturb(model, size=0.2)
    torch.testing.assert_close(reference(ROWS, 1.0), before, atol=1e-6, rtol=0)


def test_h07_four_bits_of_other_weights_are_refused(folder, tmp_path):
    save(load(ModelSettings(name=str(folder), adapter="qlora")), tmp_path / "kept")
    other = save_tiny_model(tmp_path / "other", template=TEMPLATE, width=64, layers=2)
    from safetensors.torch import load_file, save_file

    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] += 1  # a layer that is held in four bits only
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    record = tmp_path / "kept/renshu.json"
    told = json.loads(record.read_text())
    record.write_text(json.dumps(told | {"model": str(other)}))
    with pytest.raises(ModelError, match="trained on other weights than"):
        load(ModelSettings(name=str(tmp_path / "kept")))
    record.write_text(json.dumps(told | {"quantised": "int8"}))
    with pytest.raises(ModelError, match="'quantised' is 'int8'; known: 'nf4'"):
        load(ModelSettings(name=str(tmp_path / "kept")))


def test_where_the_origin_of_four_bits_is_unknown_the_fingerprint_is_empty(folder):
    model = load(ModelSettings(name=str(folder), adapter="qlora")).model
    assert fingerprint(model)
    model.get_base_model().first_values.popitem()
    assert fingerprint(model) == ""


def test_without_bitsandbytes_the_error_says_what_to_install(folder, monkeypatch):
    monkeypatch.setattr(quantised, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"one more package: pip install 'renshu\[bnb\]'"):
        load(ModelSettings(name=str(folder), adapter="qlora"))
    load(ModelSettings(name=str(folder), adapter="lora"))
