"""A run that is broken off and resumed equals one that nothing happened to, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.train import train_recipe
from renshu.pipeline.watch import Watcher
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

# A KL to the weights after the warm-up, and AdamW moments: all that a resumed stage must find again.
STAGES = [
    {"name": "warm-up", "sft": {"demonstrations": 16, "careful": 0.5, "epochs": 5, "learning_rate": 0.1}},
    {
        "name": "practice",
        "grpo": {"steps": 6, "tasks_per_step": 2, "group": 4, "learning_rate": 0.02, "beta": 0.05},
        "sample": {"max_tokens": 6},
        "stop_when": {"patience": 9},
    },
]
SETTINGS: dict[str, Any] = {
    "stages": STAGES,
    "eval": {"tasks": 6, "dev_tasks": 3, "every": 2, "max_tokens": 6, "compare": ["base", "few-shot"]},
    "checkpoints": {"every": 2},
}
TIMES = ("seconds", "seconds_source", "seconds_train")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, model):
    folder = tmp_path_factory.mktemp("undisturbed")
    return train(write_recipe(folder, model, **SETTINGS))


def train(recipe: Path, watcher: Watcher | None = None) -> Path:
    return train_recipe(read_recipe(str(recipe)), name="bell", base=recipe.parent, watcher=watcher)


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(inner) for key, inner in value.items() if key not in TIMES}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def contents(run: Path) -> dict[str, Any]:
    """All that a run says and keeps, times and places apart."""
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = path.relative_to(run).as_posix()
        if path.suffix == ".jsonl":
            found[name] = [
                without_times(json.loads(line)) for line in path.read_text("utf-8").split("\n") if line
            ]
        elif name == "summary.json":
            found[name] = without_times(json.loads(path.read_text("utf-8")))
        elif path.suffix == ".safetensors":
            found[name] = path.read_bytes()
        elif path.is_file() and name not in ("recipe.resolved.yaml", "provenance.json", "report.html"):
            found[name] = None
    return found


def same(run: Path, other: Path) -> None:
    one, two = contents(run), contents(other)
    assert list(one) == list(two)
    assert [name for name in one if one[name] != two[name]] == []


class Fails(Watcher):
    """Breaks the run off at a step, or while an arm is measured."""

    def __init__(self, error: BaseException, stage: str = "", step: int = 0, arm: str = "") -> None:
        self.error, self.place, self.arm = error, (stage, step), arm

    def stage_step(self, stage, snapshot, dev_success):
        if (stage.name, snapshot.step) == self.place:
            raise self.error

    def evaluating(self, arm, done, tasks):
        if arm == self.arm:
            raise self.error


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def noted(self, text: str) -> None:
        self.notes.append(text)


def broken_at(folder: Path, model: Path, **place: Any) -> Path:
    recipe = write_recipe(folder, model, **SETTINGS)
    with pytest.raises(RuntimeError, match="power cut") as caught:
        train(recipe, Fails(RuntimeError("power cut"), **place))
    run = folder / "run-bell-3"
    assert f"renshu resume {run}" in caught.value.__notes__[0]
    return run


@pytest.mark.parametrize(
    ("place", "stands"),
    [
        ({"arm": "base"}, "before its first step"),
        ({"stage": "warm-up", "step": 3}, "at step 2 of warm-up"),
        ({"arm": "warm-up"}, "after warm-up"),
        ({"stage": "practice", "step": 1}, "after warm-up"),
        ({"stage": "practice", "step": 5}, "at step 4 of practice"),
        ({"arm": "practice"}, "after practice"),
    ],
)
def test_a_resumed_run_equals_an_undisturbed_one(undisturbed, tmp_path, model, place, stands):
    run = broken_at(tmp_path, model, **place)
    assert json.loads((run / "failure.json").read_text()) == {"error": "RuntimeError: power cut"}
    watcher = Notes()
    torch.manual_seed(len(stands))  # whatever the process did before does not matter
    resume_run(run, watcher=watcher)
    assert watcher.notes == [f"{run} goes on {stands}"]
    same(undisturbed, run)
