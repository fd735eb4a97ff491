"""PPO as stages of a run: critics are kept beside the weights, go on if asked, and resume bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from renshu.errors import CheckpointError, ConfigError
from renshu.pipeline.loaded_agent import load_agent
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.train import train_recipe
from renshu.report.unfinished import summary_so_far
from renshu.train import checkpoint
from test_pipeline_resume import Fails, same
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

PPO: dict[str, Any] = {
    "steps": 3,
    "tasks_per_step": 2,
    "group": 4,
    "learning_rate": 0.02,
    "minibatches": 2,
    "beta": 0.05,
}


def stage(name: str, value: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"name": name, "ppo": {**PPO, "value": value}, "sample": {"max_tokens": 6}, **options}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


def recipe_in(folder: Path, model: Path, *stages: dict[str, Any], adapter: bool = True) -> Path:
    folder.mkdir()
    return write_recipe(
        folder,
        model,
        stages=list(stages),
        model={"name": str(model), **({"adapter": {"rank": 2}} if adapter else {})},
        eval={"tasks": 1, "dev_tasks": 1, "every": 3, "max_tokens": 6, "compare": []},
        checkpoints={"every": 2},
    )


def train(recipe: Path, watcher: Any = None) -> Path:
    return train_recipe(read_recipe(str(recipe)), name="bell", base=recipe.parent, watcher=watcher)


def critic_of(run: Path, name: str) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints/stages" / name / "critic.safetensors")


@pytest.mark.parametrize("critic", ["head", "separate"])
def test_a_stage_broken_off_in_its_middle_is_resumed_bit_for_bit(model, tmp_path, critic):
    stages = (stage("first", {"critic": critic}), stage("second", {"critic": critic, "inherit": True}))
    whole = train(recipe_in(tmp_path / "whole", model, *stages))
    recipe = recipe_in(tmp_path / "broken", model, *stages)
    run = tmp_path / "broken/run-bell-3"
    with pytest.raises(RuntimeError, match="power cut"):
        train(recipe, Fails(RuntimeError("power cut"), "second", 3))
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    told = summary_so_far(run, metrics, "")["stages"]
    assert [(part["name"], part["algorithm"]) for part in told] == [("first", "ppo"), ("second", "ppo")]
    resume_run(run)
    same(whole, run)
    kept = sorted(path.name for path in (whole / "checkpoints/stages/first").iterdir())
    assert kept == ["complete.json", "critic.safetensors", "trainable.safetensors"]
    weights = load_file(whole / "checkpoints/stages/first/trainable.safetensors")
    assert not any(name.startswith("critic.") for name in weights)
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").open()]
    first, second = (row["values"] for row in metrics if row["step"] == 1)
    assert first == 0.0  # it knew nothing
    assert second != 0.0  # it went on
    assert (whole / "checkpoints/final/adapter_model.safetensors").is_file()
    load_agent(str(whole))  # nothing minds the critic


def test_a_critic_is_taken_from_another_run(model, tmp_path):
    first = train(recipe_in(tmp_path / "one", model, stage("first", {}), adapter=False))
    given = critic_of(first, "first")
    second = stage("second", {"inherit": True, "learning_rate": 1e-9}, **{"from": f"{first}:first"})
    run = train(recipe_in(tmp_path / "two", model, second, adapter=False))
    found = critic_of(run, "second")
    assert given.keys() == found.keys() == {"critic.linear.weight", "critic.linear.bias"}
    assert given["critic.linear.weight"].abs().max() > 1e-3
    assert all(torch.allclose(found[name], given[name], atol=1e-6) for name in given)


@pytest.mark.parametrize(
    "stages",
    [
        [stage("first", {"inherit": True})],
        [stage("first", {}), stage("second", {"critic": "separate", "inherit": True})],
        [
            {"name": "first", "grpo": {"steps": 1}},
            stage("second", {}),
            stage("third", {"inherit": True}, **{"from": "first"}),
        ],
    ],
)
def test_a_critic_that_will_not_be_there_is_said_before_training(model, tmp_path, stages):
    with pytest.raises(ConfigError, match="value.inherit: what it starts from has no critic of kind"):
        train(recipe_in(tmp_path / "one", model, *stages))
    assert not (tmp_path / "one/run-bell-3").exists()


def test_a_separate_critic_needs_as_much_disk_again(model, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage  # type: ignore[attr-defined]
    network = torch.nn.Linear(1024, 1024, bias=False)  # 4 MiB: 36 + 36 of checkpoints, one copy of the critic
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 75 * 2**20))
    with pytest.raises(CheckpointError, match="need about 76 MiB, but 75 are free"):
        checkpoint.check_space(tmp_path, {"weight": network.weight}, critics=1)
