"""Loading, adapters, saving, and every refusal."""

import json
import shutil

import pytest
import torch

from renshu.errors import ConfigError, ModelError
from renshu.models.adapters import adapter_off, has_adapter
from renshu.models.load import _dtype, disable_dropout, eos_ids, load, locate, save
from renshu.models.settings import AdapterSettings, ModelSettings
from tiny_models import save_tiny_model

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), template=TEMPLATE)


def logits(model, ids=(5, 6, 7)):
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).logits


def test_loads_a_folder_in_float32_with_its_stop_ids(folder):
    loaded = load(ModelSettings(name=str(folder)))
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert loaded.eos_ids == {loaded.tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert all(p.requires_grad for p in loaded.model.parameters())


def test_dtype_is_obeyed(folder):
    loaded = load(ModelSettings(name=str(folder), dtype="bfloat16"))
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}


def test_generation_config_gives_stop_ids_and_nothing_else(folder):
    model = load(ModelSettings(name=str(folder))).model
    model.generation_config.eos_token_id = [3, 9]
    assert eos_ids(model, None) == {3, 9}


def test_fresh_adapter_changes_nothing_and_trains_alone(folder):
    plain = load(ModelSettings(name=str(folder)))
    adapted = load(ModelSettings(name=str(folder), adapter={"rank": 2, "alpha": 4}))
    assert has_adapter(adapted.model)
    assert not has_adapter(plain.model)
    assert torch.equal(logits(plain.model), logits(adapted.model))
    trainable = [name for name, p in adapted.model.named_parameters() if p.requires_grad]
    assert trainable
    assert all("lora_" in name for name in trainable)
    # 7 linear layers of one block, rank 2: 2 * (sum of inputs and outputs of q, k, v, o, gate, up, down)
    sizes = [(16, 16), (16, 8), (16, 8), (16, 16), (16, 32), (16, 32), (32, 16)]
    count = sum(p.numel() for p in adapted.model.parameters() if p.requires_grad)
    assert count == sum(2 * (a + b) for a, b in sizes)


def test_adapter_round_trip_and_switching_off(folder, tmp_path):
    loaded = load(ModelSettings(name=str(folder), adapter="lora"))
    before = logits(loaded.model)
    with torch.no_grad():
        for name, p in loaded.model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.05)
    after = logits(loaded.model)
    assert not torch.allclose(before, after, atol=1e-4)
    with adapter_off(loaded.model):
        assert torch.equal(logits(loaded.model), before)
    save(loaded, tmp_path / "kept")
    assert not list((tmp_path / "kept").glob("*.bin"))
    again = load(ModelSettings(name=str(tmp_path / "kept")))
    assert torch.equal(logits(again.model), after)
    assert json.loads((tmp_path / "kept/renshu.json").read_text()) == {"model": str(folder)}


def test_an_adapter_trained_on_keeps_its_first_origin(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    first = load(ModelSettings(name=f"./{folder.name}", adapter="lora"))
    save(first, tmp_path / "first")
    further = load(ModelSettings(name=str(tmp_path / "first")))
    with torch.no_grad():
        for name, p in further.model.named_parameters():
            if "lora_B" in name:
                p.fill_(0.05)
    save(further, tmp_path / "second")
    shutil.rmtree(tmp_path / "first")
    monkeypatch.chdir(tmp_path)  # a relative folder must be found from anywhere
    assert json.loads((tmp_path / "second/renshu.json").read_text()) == {"model": str(folder)}
    again = load(ModelSettings(name=str(tmp_path / "second")))
    assert torch.equal(logits(again.model), logits(further.model))
    with pytest.raises(ModelError, match=r"holds an adapter already.*set model.adapter=none"):
        load(ModelSettings(name=str(tmp_path / "second"), adapter="lora"))


@pytest.mark.parametrize(
    ("name", "device", "adapted", "expected"),
    [
        ("auto", "cuda", True, torch.bfloat16),  # a kept adapter is measured as it was trained
        ("auto", "cuda", False, torch.float32),
        ("auto", "cpu", True, torch.float32),
        ("float16", "cpu", False, torch.float16),
    ],
)
def test_dtype_by_device_and_adapter(name, device, adapted, expected):
    assert _dtype(name, torch.device(device), adapted=adapted) == expected


def test_full_model_round_trip(folder, tmp_path):
    loaded = load(ModelSettings(name=str(folder)))
    with torch.no_grad():
        loaded.model.model.norm.weight.mul_(2.0)
    save(loaded, tmp_path / "kept")
    again = load(ModelSettings(name=str(tmp_path / "kept")))
    assert torch.equal(logits(again.model), logits(loaded.model))


def test_dropout_is_switched_off(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.gpt_neox import GPTNeoXConfig, GPTNeoXForCausalLM

    small = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    models = (
        LlamaForCausalLM(LlamaConfig(**small, num_attention_heads=2, attention_dropout=0.5)),
        GPTNeoXForCausalLM(
            GPTNeoXConfig(**small, num_attention_heads=2, hidden_dropout=0.5, attention_dropout=0.5)
        ),
    )
    for model in models:
        model.train()
        assert not torch.equal(logits(model), logits(model))
        disable_dropout(model)
        assert torch.equal(logits(model), logits(model))


def test_refusals_say_what_to_do(folder, tmp_path):
    with pytest.raises(ModelError, match="no such folder"):
        locate("./nowhere")
    with pytest.raises(ModelError, match="neither config.json nor adapter_config.json"):
        locate(str(tmp_path))
    with pytest.raises(ModelError, match="targets=\\['nonsense'\\]"):
        load(ModelSettings(name=str(folder), adapter={"targets": ["nonsense"]}))
    with pytest.raises(ModelError, match="model.device=warp"):
        load(ModelSettings(name=str(folder), device="warp"))
    with pytest.raises(ConfigError, match="expected `none`, `lora`"):
        ModelSettings(adapter="lorra")
    assert ModelSettings(adapter="none").adapter is None
    assert ModelSettings(adapter="lora").adapter == AdapterSettings()


def test_remote_code_is_refused_unless_asked_for(folder, tmp_path):
    copy = tmp_path / "remote"
    shutil.copytree(folder, copy)
    config = json.loads((copy / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model", "AutoConfig": "evil.Config"}
    config["model_type"] = "never-heard-of"
    (copy / "config.json").write_text(json.dumps(config))
    (copy / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(ModelError, match=r"model\.trust_remote_code=true"):
        load(ModelSettings(name=str(copy)))
    assert not (tmp_path / "ran").exists()
