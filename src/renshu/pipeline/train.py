"""`renshu train` as a function: a recipe becomes objects, the objects a run folder."""

from __future__ import annotations

import time
from pathlib import Path

from renshu.errors import ConfigError
from renshu.pipeline.course import run_course
from renshu.pipeline.preflight import require_divisible
from renshu.pipeline.prepare import Prepared, prepare
from renshu.pipeline.provenance import provenance, without_circumstances
from renshu.pipeline.recipe import Recipe, dump_recipe
from renshu.pipeline.run_folder import PROVENANCE, RECIPE, RunFolder, require_free
from renshu.pipeline.watch import Watcher
from renshu.train.checkpoint import check_space
from renshu.train.optimiser import trainable
from renshu.train.processes import ALONE, Processes, require_equal

__all__ = ["Prepared", "out_folder", "play", "prepare", "train_recipe"]


def train_recipe(
    recipe: Recipe,
    *,
    name: str,
    base: str | Path = ".",
    overwrite: bool = False,
    watcher: Watcher | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Play all stages, measure every arm on held-out tasks, write the run folder and return its path.

    name: of the recipe. base: the folder that its relative paths start from. processes: those that play it
    together, as `renshu.train.joining.joined` gives them. What can be known to fail raises a RenshuError
    before the run folder is made.
    """
    began = time.perf_counter()
    require_divisible(recipe, processes.size)
    require_free(out_folder(recipe, name), overwrite=overwrite)
    prepared = prepare(recipe, name=name, base=base)
    return play(prepared, overwrite=overwrite, watcher=watcher, began=began, processes=processes)


def play(
    prepared: Prepared,
    *,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    began: float | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Train and measure what was prepared; returns the run folder. began: the start, by `perf_counter`."""
    began = time.perf_counter() if began is None else began
    run = new_run(prepared, overwrite=overwrite, processes=processes)
    run_course(prepared, run, watcher or Watcher(), began, processes=processes)
    return run.path


def new_run(prepared: Prepared, *, overwrite: bool = False, processes: Processes = ALONE) -> RunFolder:
    """The folder of a run that begins, with its recipe and provenance. Raises ConfigError."""
    recipe, agent = prepared.recipe, prepared.agent
    folder = out_folder(recipe, prepared.name)
    record = provenance(recipe, prepared.name, agent, prepared.base)
    record["processes"] = processes.size
    require_equal(processes, without_circumstances(record))
    run = RunFolder(folder)

    def begin() -> None:
        kept = len(recipe.stages) + 2  # the end of every stage, the best and the final weights
        keep = recipe.checkpoints.keep
        critics = sum(s.ppo is not None and s.ppo.value.critic == "separate" for s in recipe.stages)
        check_space(folder, trainable(agent.loaded.model), keep=keep, copies=kept, critics=critics)
        run.begin(overwrite=overwrite)
        try:
            run.write_text(RECIPE, dump_recipe(recipe))
            run.write_json(PROVENANCE, record)
        except BaseException:
            run.close()
            raise

    processes.led(begin)
    return run


def out_folder(recipe: Recipe, name: str) -> Path:
    place = recipe.out.replace("{recipe}", name).replace("{seed}", str(recipe.seed))
    try:
        return Path(place).expanduser()
    except RuntimeError as error:  # there is no such user
        raise ConfigError(f"out: {place}: {error}") from None
