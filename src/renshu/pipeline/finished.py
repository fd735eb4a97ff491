"""Using what a run has kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from renshu.envs import Environment
from renshu.errors import ConfigError
from renshu.models import ModelSettings
from renshu.pipeline.environments import load_environment
from renshu.pipeline.recipe import Recipe, read_recipe
from renshu.pipeline.run_folder import RunFolder, is_run
from renshu.types import Task


@dataclass(frozen=True)
class Target:
    """A model to evaluate or to talk with. recipe: of the run it comes from, None for a bare model.

    base: the folder that relative paths of the recipe start from.
    """

    model: ModelSettings
    base: Path
    recipe: Recipe | None


def find_target(name: str) -> Target:
    """The kept model of a run, or a model by name or folder. Raises ConfigError if nothing was kept."""
    if not is_run(name):
        return Target(ModelSettings(name=name), Path(), None)
    run = RunFolder(name)
    recipe = read_recipe(str(run.path / "recipe.resolved.yaml"))
    final = run.path / "checkpoints" / "final"
    if not final.is_dir():
        raise ConfigError(f"{run.path} has kept no model: its training did not come to an end")
    model = recipe.model.model_copy(update={"name": str(final), "adapter": None})
    return Target(model, Path(run.read_json("provenance.json")["base"]), recipe)


def environment_for(target: Target, name: str | None) -> type[Environment]:
    """The environment called `name`, else the one of the run. Raises ConfigError if there is neither."""
    if name is not None:
        return load_environment(name)
    if target.recipe is None:
        raise ConfigError(
            "a model alone does not say what to do: name an environment with --env, e.g. --env flights"
        )
    return load_environment(target.recipe.env, target.base)


def numbered_task(environment: type[Environment], number: int) -> Task:
    """Task `number` (from 0) of the test split. Raises ConfigError, or DataError, if there is none."""
    if environment.tasks is None:
        raise ConfigError(f"{environment.__name__} has no tasks: set `tasks` to Tasks")
    tasks = environment.tasks.split("test")
    if number >= len(tasks):
        raise ConfigError(f"there is no test task {number}: the last one is {len(tasks) - 1}")
    return tasks[number]
