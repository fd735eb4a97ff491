"""All five algorithms in one run, with an adapter; broken off in the middle of every stage's accumulation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.resume import resume_run
from renshu.pipeline.train import train_recipe
from renshu.train.loop import Trainer
from test_pipeline_resume import same
from tiny_models import qwen_template, save_tiny_model
from tiny_runs import write_recipe

SMALL = {"steps": 4, "tasks_per_step": 2, "group": 4, "learning_rate": 0.02, "token_budget": 24}
SAMPLE = {"sample": {"max_tokens": 6}}
STAGES: list[dict[str, Any]] = [
    {
        "name": "warm-up",
        "sft": {
            "demonstrations": 8,
            "careful": 0.5,
            "epochs": 4,
            "rows_per_step": 8,
            "learning_rate": 0.1,
            "token_budget": 24,
        },
    },
    {"name": "practice", "grpo": {**SMALL, "beta": 0.05}, **SAMPLE},
    {
        "name": "thumbs",
        "kto": {
            "trajectories": "practice",
            "rows_per_step": 8,
            "learning_rate": 0.02,
            "token_budget": 24,
        },
    },
    {
        "name": "pairs",
        "dpo": {
            "data": "pairs.jsonl",
            "epochs": 4,
            "pairs_per_step": 4,
            "learning_rate": 0.02,
            "token_budget": 24,
        },
        "reference": "base",
    },
    {"name": "values", "ppo": {**SMALL, "beta": 0.05, "value": {"critic": "separate"}}, **SAMPLE},
]
PAIRS = [{"prompt": f"go {n}", "chosen": "b", "rejected": "c" * (n + 1)} for n in range(4)]


class PowerCut(Exception):
    pass


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template())


def recipe_in(folder: Path, model: Path, stages: list[dict[str, Any]], adapter: bool = True) -> Path:
    folder.mkdir()
    lines = "".join(json.dumps(pair) + "\n" for pair in PAIRS)
    (folder / "pairs.jsonl").write_text(lines, encoding="utf-8")
    return write_recipe(
        folder,
        model,
        stages=stages,
        model={"name": str(model), **({"adapter": {"rank": 2}} if adapter else {})},
        eval={"tasks": 2, "dev_tasks": 2, "every": 3, "max_tokens": 6, "compare": []},
        checkpoints={"every": 2},
    )


def train(recipe: Path) -> Path:
    return train_recipe(read_recipe(str(recipe)), name="bell", base=recipe.parent)


def cut_power(patch: pytest.MonkeyPatch, algorithm: str) -> None:
    """In the third step of an algorithm, as soon as a first part of the gradient is there."""
    steps: list[int] = []
    step, learn = Trainer.step, Trainer._learn

    def counted(self, number, batch):
        if self.algorithm.name == algorithm:
            steps.append(number)
        return step(self, number, batch)

    def broken(self, *given, **named):
        begun = any(p.grad is not None for p in self.trained.values())
        if steps[-1:] == [2] and begun:
            raise PowerCut(algorithm)
        return learn(self, *given, **named)

    patch.setattr(Trainer, "step", counted)
    patch.setattr(Trainer, "_learn", broken)


def test_a_run_of_five_stages_broken_off_in_each_accumulation_is_the_same_bit_for_bit(model, tmp_path):
    whole = train(recipe_in(tmp_path / "whole", model, STAGES))
    recipe = recipe_in(tmp_path / "broken", model, STAGES)
    run = tmp_path / "broken/run-bell-3"
    for algorithm in ("sft", "grpo", "kto", "dpo", "ppo"):
        with pytest.MonkeyPatch.context() as patch:
            cut_power(patch, algorithm)
            with pytest.raises(PowerCut, match=algorithm) as caught:
                train(recipe) if algorithm == "sft" else resume_run(run)
        assert caught.value.__notes__[0].startswith("kept: the run at step 2 of ")
    resume_run(run)
    same(whole, run)
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").open()]
    assert {row["stage"]: row["steps"] for row in metrics} == {stage["name"]: 4 for stage in STAGES}


def test_a_stage_that_branches_off_and_looks_back_at_the_base_resumes_bit_for_bit(model, tmp_path):
    """It starts from the warm-up, not from the stage before it; it is compared with a second model."""
    prefer = {"name": "prefer", "from": "warm-up", "reference": "base", "kto": SMALL, **SAMPLE}
    stages = [STAGES[0], {**STAGES[1], "grpo": {**SMALL, "steps": 1}}, prefer]
    whole = train(recipe_in(tmp_path / "whole", model, stages, adapter=False))
    recipe = recipe_in(tmp_path / "broken", model, stages, adapter=False)
    with pytest.MonkeyPatch.context() as patch:
        cut_power(patch, "kto")
        with pytest.raises(PowerCut):
            train(recipe)
    resume_run(tmp_path / "broken/run-bell-3")
    same(whole, tmp_path / "broken/run-bell-3")
    metrics = [json.loads(line) for line in (whole / "metrics.jsonl").open()]
    (first, *_) = [row for row in metrics if row["stage"] == "prefer"]
    rewards = (first["rewards_chosen"], first["rewards_rejected"])
    assert any(abs(reward) > 0.01 for reward in rewards)  # in the first step already
