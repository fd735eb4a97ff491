"""A tiny environment and recipe, for tests that play a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

ECHO = '''
from renshu import Environment, Tasks, call, reward, say, success, tool

def draw(random):
    return {"number": random.randint(0, 99)}

class Bell(Environment):
    """Say "b"; ringing the bell first is allowed."""
    max_turns = 3
    tasks = Tasks.generated(draw, train=64, dev=6, test=12)

    def setup(self, task):
        return "go"

    @tool
    def ring(self) -> str:
        """Ring."""
        return "ding"

    @success
    def solved(self, trajectory) -> bool:
        return trajectory.messages[-1].content == "b"

    @reward(1.0)
    def right(self, trajectory) -> float:
        return float(self.solved(trajectory))

    def solve(self):
        yield say("b")

    def hurried(self):
        yield say("c")
'''

RECIPE = """
seed: 3
env: bell.py:Bell
stages:
  - name: warm-up
    sft: {demonstrations: 16, careful: 0.375, epochs: 24, rows_per_step: 16, learning_rate: 0.1}
  - name: practice
    grpo: {steps: 5, tasks_per_step: 2, group: 8, learning_rate: 0.02}
    sample: {max_tokens: 6}
eval: {tasks: 12, dev_tasks: 6, every: 2, max_tokens: 6, compare: [base, few-shot], shots: 1}
"""


def write_recipe(folder: Path, model_folder: Path, **changes: Any) -> Path:
    (folder / "bell.py").write_text(ECHO, encoding="utf-8")
    data = yaml.safe_load(RECIPE)
    data |= {"model": {"name": str(model_folder)}, "out": str(folder / "run-{recipe}-{seed}"), **changes}
    path = folder / "bell.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path
