"""Using what a run has kept, also one that was broken off."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from renshu.envs import Environment
from renshu.errors import ConfigError
from renshu.models import ModelSettings
from renshu.pipeline.endpoints import is_api
from renshu.pipeline.environments import load_environment
from renshu.pipeline.recipe import Recipe
from renshu.pipeline.run_folder import RunFolder, is_run
from renshu.train.checkpoint import is_complete


@dataclass(frozen=True)
class Target:
    """A model to evaluate or to talk with. recipe: of the run it comes from, None for a bare model.

    base: the folder that relative paths of the recipe start from. weights: of a run that did not come to its
    end, the best so far, to be put into the model; else None.
    """

    model: ModelSettings
    base: Path
    recipe: Recipe | None
    weights: Path | None = None

    @property
    def note(self) -> str | None:
        """What a user should know before using it."""
        broken_off = "the run did not come to its end: this is the best it has kept so far"
        return broken_off if self.weights is not None else None


def find_target(name: str) -> Target:
    """The kept model of a run, or a model by name or folder. Raises ConfigError if nothing was kept."""
    if is_api(name):
        raise ConfigError(
            "a model behind an endpoint (api:) gives no weights and no token ids, so it cannot be trained or "
            "served: it is for `renshu eval` and `renshu compare`"
        )
    if not is_run(name):
        _refuse_misspelt(Path(name))
        return Target(ModelSettings(name=name), Path(), None)
    run = RunFolder(name)
    recipe, base = run.recipe, run.base
    final, best = run.path / "checkpoints" / "final", run.path / "checkpoints" / "best"
    if is_complete(final):
        model = recipe.model.model_copy(update={"name": str(final), "adapter": None})
        return Target(model, base, recipe)
    if not is_complete(best):
        raise ConfigError(f"{run.path} has kept no model: its training did not come to an end")
    return Target(recipe.model, base, recipe, best)


def _refuse_misspelt(path: Path) -> None:
    """Raise ConfigError for what is neither here nor a name to look up on the hub: its folder is here."""
    if not path.exists() and path.parent.name and path.parent.is_dir():
        here = ", ".join(sorted(entry.name for entry in path.parent.iterdir() if entry.is_dir())[:10])
        raise ConfigError(f"{path}: no such folder; {path.parent} holds {here or 'none'}")


def environment_for(target: Target | None, name: str | None) -> type[Environment]:
    """The environment called `name`, else the one of the run. Raises ConfigError if there is neither."""
    if name is not None:
        return load_environment(name)
    if target is None or target.recipe is None or target.recipe.env is None:
        agents = target is not None and target.recipe is not None
        who = "a run whose agents ran elsewhere" if agents else "a model alone"
        raise ConfigError(
            f"{who} does not say what to do: name an environment with --env, e.g. --env flights"
        )
    return load_environment(target.recipe.environment, target.base)
