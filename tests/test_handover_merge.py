"""`renshu merge`: a whole model that replies as the adapter did."""

import re

import pytest

import renshu
from renshu.cli import main
from renshu.errors import ConfigError
from renshu.handover.merge import merge_run
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


def trained(place, name, **model):
    stages = [{"name": "warm-up", "sft": {"demonstrations": 4, "learning_rate": 0.1, "epochs": 2}}]
    small = {"tasks": 2, "dev_tasks": 2, "max_tokens": 4, "compare": []}
    settings = {"name": str(place / "tiny"), **model}
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
        rf"{place / 'whole'}: a whole model; log-probs as with the adapter, to \de-0[6-9] nats\n", told
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
