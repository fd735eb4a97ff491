"""`renshu merge`: a whole model that replies as the adapter did."""

import re

import pytest
import torch

import renshu
from renshu.cli import main
from renshu.errors import ConfigError
from renshu.handover import gguf_file
from renshu.handover.merge import merge_run
from renshu.models import quantised
from renshu.models.adapters import has_adapter
from renshu.models.load import load
from renshu.models.settings import ModelSettings
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from renshu.types import Message
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merge")
    save_tiny_model(folder / "tiny", template=qwen_template())
    return folder


def trained(place, name, base="tiny", **model):
    stages = [{"name": "warm-up", "sft": {"demonstrations": 4, "learning_rate": 0.1, "epochs": 2}}]
    small = {"tasks": 2, "dev_tasks": 2, "max_tokens": 4, "compare": []}
    settings = {"name": str(place / base), **model}
    recipe = write_recipe(place, place / "tiny", stages=stages, eval=small, threads=1, model=settings)
    return train_recipe(read_recipe(str(recipe), [f"out={place / name}"]), name="bell", base=place)


def test_the_merged_model_replies_as_with_the_adapter(place, monkeypatch, capsys):
    run = trained(place, "lora", adapter={"rank": 2})
    asked = [Message("user", "go")]
    said = renshu.load_agent(run).reply(asked, max_tokens=12)
    monkeypatch.setattr("sys.argv", ["renshu", "merge", str(run), "--out", str(place / "whole")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    told = capsys.readouterr().out
    assert re.fullmatch(
        rf"{place / 'whole'}: a whole model; log-probs as trained, to \de-0[6-9] nats\n", told
    )
    assert not has_adapter(load(ModelSettings(name=str(place / "whole"))).model)
    assert renshu.load_agent(place / "whole").reply(asked, max_tokens=12) == said
    with pytest.raises(ConfigError, match="exists: choose another folder with --out"):
        merge_run(run, place / "whole")


def test_a_run_without_adapter_needs_no_merging(place):
    run = trained(place, "full")
    with pytest.raises(ConfigError, match="has no adapter: .* is a whole model already"):
        merge_run(run, place / "other")
    assert not (place / "other").exists()


def test_a_run_without_adapter_becomes_a_file_of_another_form(place):
    """Judged by what training changed: here almost all, so that half the bits are enough."""
    run = trained(place, "whole-run")
    wide = merge_run(run, place / "wide-gguf", to="gguf")
    narrow = merge_run(run, place / "narrow-gguf", to="gguf", dtype="float16")
    assert wide.gap < 1e-5 < narrow.gap < 1e-2
    model = renshu.load_agent(run).agent.loaded.model
    for written in (wide, narrow):
        again = gguf_file.read_back(written.folder / "model.gguf", model)
        ids = torch.tensor([[1, 5, 9, 2, 7]])
        gap = (again(input_ids=ids).logits - model(input_ids=ids).logits).abs().max().item()
        assert gap < (1e-4 if written is wide else 0.05)
    with pytest.raises(ConfigError, match="is no run: what its training changed is not known"):
        merge_run(run / "checkpoints/final", place / "no", to="gguf")


def merged(place, run, out, capsys, monkeypatch, *options):
    monkeypatch.setattr("sys.argv", ["renshu", "merge", str(run), "--out", str(place / out), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    return ended.value.code or 0, told.out + told.err


def test_a_four_bit_run_becomes_a_modelfile_with_the_same_greedy_answers(place, monkeypatch, capsys):
    """Trained on four bits, loaded on four bits, merged in float32, written and read back."""
    save_tiny_model(place / "wide", template=qwen_template(), width=64)
    run = trained(place, "qlora", "wide", adapter={"kind": "qlora", "rank": 2})
    agent = renshu.load_agent(run)
    assert quantised.layers(agent.agent.loaded.model)
    code, told = merged(place, run, "ollama", capsys, monkeypatch, "--to", "ollama")
    assert code == 0, told
    assert re.search(r"log-probs as trained, to \de-0[6-9] nats", told)
    assert sorted(path.name for path in (place / "ollama").iterdir()) == [
        "Modelfile",
        "complete.json",
        "model.gguf",
    ]
    commands = (place / "ollama/Modelfile").read_text()
    assert commands.startswith("FROM ./model.gguf\n")
    assert '{"name": "ring", "description": "Ring."' in commands
    merge_run(run, place / "whole-qlora")
    plain = renshu.load_agent(place / "whole-qlora")
    for asked in ("go", "stop", "b?", "ding"):
        assert plain.reply([Message("user", asked)], max_tokens=8) == agent.reply(
            [Message("user", asked)], max_tokens=8
        )


def test_what_cannot_be_is_refused_before_anything_is_written(place, monkeypatch, capsys):
    run = place / "lora"
    code, told = merged(place, run, "no", capsys, monkeypatch, "--dtype", "q8_0")
    assert (code, "--dtype q8_0 is a type of GGUF files: add --to gguf" in told) == (1, True)
    monkeypatch.setattr(gguf_file, "ARCHITECTURES", ("gpt2",))
    code, told = merged(place, run, "no", capsys, monkeypatch, "--to", "gguf")
    assert code == 1
    assert "LlamaForCausalLM is not written as GGUF" in told
    assert not (place / "no").exists()


def test_a_template_that_ignores_tools_is_told(place, monkeypatch, capsys):
    run = trained(place, "plain", adapter={"rank": 2}, template="fallback")
    code, told = merged(place, run, "plain-gguf", capsys, monkeypatch, "--to", "gguf", "--dtype", "float16")
    assert code == 0
    assert "Note: the chat template alone does not write these dialogues as training did" in told
    code, told = merged(place, place / "lora", "own-gguf", capsys, monkeypatch, "--to", "gguf")
    assert (code, "Note" in told, told.count("\n")) == (0, False, 1)  # no bar of another library either
