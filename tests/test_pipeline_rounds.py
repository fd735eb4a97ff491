"""A run with dynamic sampling and rewards of turns: all is recorded, and a resumed run samples the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from renshu.errors import CheckpointError
from renshu.pipeline import resume_run, train_recipe
from renshu.pipeline.recipe import CheckpointSettings, Recipe, read_recipe
from renshu.pipeline.watch import Watcher
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

CALM = """
    @reward(0.5, kind="process")
    def calm(self, trajectory):
        said = [m for m in trajectory.messages if m.role == "assistant"]
        return [None if m.tool_calls else float(len(m.content) < 2) for m in said]

    def solve(self):"""
TIMES = ("seconds_source", "seconds_train")


def bell_recipe(folder: Path) -> Recipe:
    folder.mkdir()
    model = save_tiny_model(folder / "model", template=qwen_template())
    warm_up = {
        "demonstrations": 16,
        "careful": 0.375,
        "epochs": 12,
        "rows_per_step": 16,
        "learning_rate": 0.1,
    }
    practice = {"steps": 3, "tasks_per_step": 2, "group": 2, "learning_rate": 0.005,
                "dynamic_sampling": 2, "credit": "steps"}  # fmt: skip
    stages = [
        {"name": "warm-up", "sft": warm_up},
        {"name": "practice", "grpo": practice, "sample": {"max_tokens": 4}},
    ]
    evaluation = {"tasks": 2, "dev_tasks": 2, "every": 9, "max_tokens": 4, "compare": []}
    path = write_recipe(folder, model, stages=stages, eval=evaluation, checkpoints={"every": 1})
    (folder / "bell.py").write_text((folder / "bell.py").read_text().replace("\n    def solve(self):", CALM))
    return read_recipe(str(path))


class Breaks(Watcher):
    def stage_step(self, stage: Any, snapshot: Any, dev_success: Any) -> None:
        if (stage.name, snapshot.step) == ("practice", 2):
            raise KeyboardInterrupt


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run, undisturbed, and broken off in its second step of practice and resumed."""
    root = tmp_path_factory.mktemp("rounds")
    whole = train_recipe(bell_recipe(root / "a"), name="bell", base=root / "a")
    recipe = bell_recipe(root / "b")
    with pytest.raises(KeyboardInterrupt):
        train_recipe(recipe, name="bell", base=root / "b", watcher=Breaks())
    return whole, resume_run(root / "b" / "run-bell-3")


def test_all_rollouts_of_all_rounds_are_recorded(runs: tuple[Path, Path]) -> None:
    steps = [row for row in lines(runs[0] / "metrics.jsonl") if row["stage"] == "practice"]
    rounds = [row["sampling_rounds"] for row in steps]
    assert max(rounds) > 1  # the recipe is one where the first round does not suffice
    for number, row in enumerate(steps, start=1):
        rollouts = lines(runs[0] / f"trajectories/practice/step-{number:05}.jsonl")
        assert len(rollouts) == row["rollouts"] == row["sampling_rounds"] * 4  # tasks × group
        left = row["groups_skipped"] + row["groups_surplus"]
        assert 0 < row["groups"] - left <= 2
        tasks = [rollout["task"] for rollout in rollouts]
        assert len(set(tasks)) == row["groups"]  # further rounds are of other tasks
        for rollout in rollouts:
            turns = rollout["counts"]["turns"]
            assert len(rollout["steps"]["calm"]) == turns
            assert set(rollout["steps"]["calm"]) <= {None, 0.0, 0.5}


def test_a_resumed_run_samples_and_learns_the_same(runs: tuple[Path, Path]) -> None:
    def without_times(run: Path) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k not in TIMES} for row in lines(run / "metrics.jsonl")]

    one, other = runs
    assert without_times(one) == without_times(other)
    for step in (1, 2, 3):
        name = f"trajectories/practice/step-{step:05}.jsonl"
        assert (one / name).read_bytes() == (other / name).read_bytes()
    weights = [load_file(run / "checkpoints/final/model.safetensors") for run in runs]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_checkpoints_to_keep_need_room(tmp_path: Path) -> None:
    recipe = bell_recipe(tmp_path / "a")
    wide = recipe.model_copy(update={"checkpoints": CheckpointSettings(keep=10**9)})
    with pytest.raises(CheckpointError, match="1000000001 checkpoints need about"):
        train_recipe(wide, name="bell", base=tmp_path / "a")
    assert not (tmp_path / "a" / "run-bell-3").exists()


@pytest.mark.parametrize("algorithm", ["grpo", "dpo"])
def test_a_stage_that_mostly_had_nothing_to_learn_from_says_so(tmp_path: Path, algorithm: str) -> None:
    model = save_tiny_model(tmp_path / "model", template=qwen_template())
    stages = [
        {
            "name": "practice",
            algorithm: {"steps": 3, "tasks_per_step": 1, "group": 2},
            "sample": {"max_tokens": 2},
        }
    ]
    evaluation = {"tasks": 2, "dev_tasks": 2, "every": 9, "max_tokens": 2, "compare": []}
    recipe = read_recipe(str(write_recipe(tmp_path, model, stages=stages, eval=evaluation)))
    source = (tmp_path / "bell.py").read_text()
    (tmp_path / "bell.py").write_text(source.replace("return float(self.solved(trajectory))", "return 1.0"))
    heard = []

    class Ear(Watcher):
        def noted(self, text: str) -> None:
            heard.append(text)

    run = train_recipe(recipe, name="bell", base=tmp_path, watcher=Ear())
    last = lines(run / "findings.jsonl")[-1]
    assert (last["name"], last["stage"], last["step"]) == ("idle", "practice", 3)
    assert last["text"].startswith(
        "3 of 3 steps of practice had nothing to learn from, and changed no weight"
    )
    assert heard[-1] == last["text"]
