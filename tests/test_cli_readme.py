"""The readme's own environment: it keeps its contract, trains, and is short."""

import json
import re
from pathlib import Path

from renshu.envs import check_env, play_through
from renshu.pipeline.environments import load_environment
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from tiny_models import qwen_template, save_tiny_model

README = (Path(__file__).parent.parent / "README.md").read_text("utf-8")


def block(language: str, first_line: str) -> str:
    (found,) = re.findall(rf"```{language}\n({re.escape(first_line)}\n.*?)```", README, flags=re.S)
    return found


def test_own_environment_and_recipe_of_the_readme_work(tmp_path):
    source = block("python", "# clerk.py")
    (tmp_path / "clerk.py").write_text(source, encoding="utf-8")
    (tmp_path / "clerk.yaml").write_text(block("yaml", "# clerk.yaml"), encoding="utf-8")
    code = [line for line in source.splitlines() if line.strip() and not line.startswith(("#", "from"))]
    assert len(code) <= 25
    clerk = load_environment("clerk.py:Clerk", tmp_path)
    assert check_env(clerk) == []
    gold = play_through(clerk(), clerk.tasks.test[0])
    assert (gold.score.value, gold.score.success) == (1.0, True)

    model = save_tiny_model(tmp_path / "model", template=qwen_template())
    small = ["stages.0.sft.demonstrations=4", "stages.1.grpo.steps=1", "stages.1.grpo.group=2"]
    small += ["stages.1.grpo.tasks_per_step=1", "stages.1.sample={max_tokens: 4}"]
    small += [
        "eval={tasks: 2, dev_tasks: 1, max_tokens: 4}",
        f"model.name={model}",
        f"out={tmp_path / 'run'}",
    ]
    small.append(f"out={tmp_path / 'run'}")
    run = train_recipe(read_recipe(str(tmp_path / "clerk.yaml"), small), name="clerk", base=tmp_path)
    assert json.loads((run / "summary.json").read_text())["evaluation"]["Clerk"]["arms"][0]["n"] == 2


def test_commands_of_the_readme_exist():
    from typer.main import get_command

    from renshu.cli.app import app

    verbs = set(get_command(app).commands)
    assert set(re.findall(r"renshu (\w+) (?:flights|clerk|runs|get|--hack)", README)) <= verbs
    makefile = (Path(__file__).parent.parent / "Makefile").read_text("utf-8")
    for target in re.findall(r"`?make (\w+)", README):
        assert f"\n{target}:" in makefile
