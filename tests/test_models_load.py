"""Loading, adapters, saving, and every refusal."""

import json
import shutil

import pytest
import torch

from renshu.errors import ConfigError, ModelError
from renshu.models.adapters import adapter_off, has_adapter
from renshu.models.load import disable_dropout, eos_ids, load, locate, save
from renshu.models.precision import weight_type
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
    assert json.loads((tmp_path / "kept/renshu.json").read_text())["model"] == str(folder)


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
    assert json.loads((tmp_path / "second/renshu.json").read_text())["model"] == str(folder)
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
    settings = ModelSettings(dtype=name)
    assert weight_type(settings, torch.device(device), adapted=adapted) == expected


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
    (tmp_path / "run/checkpoints/final").mkdir(parents=True)
    with pytest.raises(ModelError, match="it is a run; the model that it kept is .*/run/checkpoints/final$"):
        locate(str(tmp_path / "run"))
    (tmp_path / "trainable.safetensors").touch()
    with pytest.raises(ModelError, match="the weights of a stage; .* `from: runs/x:stage`$"):
        locate(str(tmp_path))
    with pytest.raises(ModelError, match="targets=\\['nonsense'\\]"):
        load(ModelSettings(name=str(folder), adapter={"targets": ["nonsense"]}))
    with pytest.raises(ModelError, match="model.device=warp"):
        load(ModelSettings(name=str(folder), device="warp"))
    with pytest.raises(ConfigError, match="expected `none`, `lora`"):
        ModelSettings(adapter="lorra")
    assert ModelSettings(adapter="none").adapter is None
    assert ModelSettings(adapter="lora").adapter == AdapterSettings()
    assert ModelSettings(adapter="dora").adapter == AdapterSettings(kind="dora")


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


def copied(folder, target, **config):
    """A copy of a folder, its config changed."""
    shutil.copytree(folder, target)
    settings = json.loads((target / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps(settings))
    return target


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"num_hidden_layers": 2}, r"does not hold the weights .* 9 are missing.*e\.g\. model\.layers\.1\."),
        ({"vocab_size": 300}, r"1 are missing or of another shape, e\.g\. model\.embed_tokens\.weight"),
    ],
)
def test_weights_that_would_be_random_are_refused(folder, tmp_path, config, reason):
    with pytest.raises(ModelError, match=reason):
        load(ModelSettings(name=str(copied(folder, tmp_path / "m", **config))))


@pytest.mark.parametrize("length", [0, 100, 500])
def test_damaged_weights_are_refused(folder, tmp_path, length):
    path = copied(folder, tmp_path / "m") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError, match="cannot be loaded: "):
        load(ModelSettings(name=str(path.parent)))


class Payload:
    def __reduce__(self):
        return (open, (str(self.marker), "w"))


def test_pickled_weights_are_never_read(folder, tmp_path):
    Payload.marker = tmp_path / "ran"
    bare = copied(folder, tmp_path / "m")
    (bare / "model.safetensors").unlink()
    torch.save({"x": Payload()}, bare / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load(ModelSettings(name=str(bare)))
    save(load(ModelSettings(name=str(folder), adapter="lora")), tmp_path / "kept")
    (tmp_path / "kept/adapter_model.safetensors").unlink()
    torch.save({"x": Payload()}, tmp_path / "kept/adapter_model.bin")
    with pytest.raises(ModelError, match="pickled weights are not read"):
        load(ModelSettings(name=str(tmp_path / "kept")))
    assert not (tmp_path / "ran").exists()


def test_h07_an_adapter_of_another_model_is_refused(folder, tmp_path):
    save(load(ModelSettings(name=str(folder), adapter="lora")), tmp_path / "kept")
    record = tmp_path / "kept/renshu.json"
    told = json.loads(record.read_text())

    def move_to(model, **changes):
        record.write_text(json.dumps(told | {"model": str(model)} | changes))
        load(ModelSettings(name=str(tmp_path / "kept")))

    same = copied(folder, tmp_path / "same")
    move_to(same)
    load(ModelSettings(name=str(tmp_path / "kept"), dtype="bfloat16"))
    other = save_tiny_model(tmp_path / "other", template=TEMPLATE)
    from safetensors.torch import load_file, save_file

    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] += 1
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match="trained on other weights than"):
        move_to(other)
    wider = save_tiny_model(tmp_path / "wider", template=TEMPLATE, width=32)
    with pytest.raises(ModelError, match=r"does not fit the model or is damaged"):
        move_to(wider, weights="")


def test_h07_an_adapter_of_a_deeper_model_is_refused(folder, tmp_path):
    deeper = save_tiny_model(tmp_path / "deeper", template=TEMPLATE, layers=2)
    save(load(ModelSettings(name=str(deeper), adapter="lora")), tmp_path / "kept")
    (tmp_path / "kept/renshu.json").write_text(json.dumps({"model": str(folder)}))
    with pytest.raises(ModelError, match=r"is of another model: 14 names differ"):
        load(ModelSettings(name=str(tmp_path / "kept")))


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("renshu.json", "{bad", "renshu.json cannot be read"),
        ("renshu.json", "{}", "renshu.json has no 'model'"),
        ("adapter_config.json", "{}", "does not fit the model or is damaged"),
        ("adapter_model.safetensors", "x", "does not fit the model or is damaged"),
    ],
)
def test_damaged_adapters_are_refused(folder, tmp_path, name, text, reason):
    save(load(ModelSettings(name=str(folder), adapter="lora")), tmp_path / "kept")
    (tmp_path / "kept" / name).write_text(text)
    with pytest.raises(ModelError, match=reason):
        load(ModelSettings(name=str(tmp_path / "kept")))
