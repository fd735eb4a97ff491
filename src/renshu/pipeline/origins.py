"""What a stage takes from elsewhere: trajectories, and the weights it starts from. One way to name both:

    practice             an earlier stage of the same recipe
    runs/x               a run: all it sampled, or the weights it kept
    runs/x:practice      a stage of a run: what it sampled, or the weights with which it ended
    kept/                a file or folder of trajectories, or a folder of weights

Paths start from the recipe's folder, or, where nothing is there, from the current one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renshu.data.trajectories import FOLDER, trajectory_files
from renshu.errors import CheckpointError, ConfigError
from renshu.models.adapters import fingerprint, has_adapter
from renshu.pipeline.agent import Agent
from renshu.pipeline.recipe import Recipe, Stage
from renshu.pipeline.run_folder import RunFolder, is_run
from renshu.pipeline.sources import sum_of
from renshu.train.checkpoint import CRITIC_WEIGHTS, WEIGHTS, require_fit
from renshu.train.optimiser import trainable

STAGES = "checkpoints/stages"  # of a run: the weights after each stage
BEST = "checkpoints/best"


@dataclass(frozen=True)
class Origin:
    """path: of a run, file or folder. stage: of the run."""

    path: Path
    stage: str | None = None

    @property
    def is_run(self) -> bool:
        return is_run(self.path)

    @property
    def weights(self) -> Path:
        """The folder of the weights that it stands for."""
        if not self.is_run:
            return self.path
        return self.path / (BEST if self.stage is None else f"{STAGES}/{self.stage}")

    @property
    def trajectories(self) -> list[Path]:
        return trajectory_files(self.path, self.stage)


def earlier_stage(recipe: Recipe, stage: Stage, name: str) -> Stage | None:
    """The stage of the recipe that `name` means, if it is one. Raises ConfigError if it is played later."""
    names = [other.name for other in recipe.stages]
    if name not in names:
        return None
    if names.index(name) >= names.index(stage.name):
        raise ConfigError(f"stage {stage.name}: {name} is not over before it begins: name an earlier stage")
    return recipe.stages[names.index(name)]


def find_origin(name: str, base: Path) -> Origin | None:
    """What `name` means beside earlier stages; None if nothing is there."""
    place, _, stage = name.rpartition(":")
    for folder in (base, Path()):
        if (folder / name).exists():
            return Origin(folder / name)
        if place and is_run(folder / place):
            return Origin(folder / place, stage)
    return None


def stored(recipe: Recipe, stage: Stage, base: Path) -> Origin | None:
    """Where the trajectories of a stage are; None if an earlier stage of the recipe has yet to sample them.

    Raises ConfigError if there are none.
    """
    name = stage.trajectories
    assert name is not None
    key = f"stage {stage.name}: trajectories: {name}"
    if (earlier := earlier_stage(recipe, stage, name)) is not None:
        if not earlier.samples:
            raise ConfigError(f"{key}: a stage of {earlier.algorithm} samples nothing here")
        return None
    found = find_origin(name, base)
    if found is None:
        raise ConfigError(f"{key}: {_nothing(recipe, stage, base)}")
    _require_stage(found, key)
    if not found.trajectories:
        where = found.path / FOLDER if found.is_run else found.path
        raise ConfigError(f"{key}: {where}{f'/{found.stage}' if found.stage else ''} has no trajectories")
    return found


def start_of(recipe: Recipe, stage: Stage, base: Path, run: Path) -> Path | None:
    """The folder of the weights that a stage names to start from; None if it names none. run: its own."""
    if stage.start is None:
        return None
    if (earlier := earlier_stage(recipe, stage, stage.start)) is not None:
        return run / STAGES / earlier.name
    found = find_origin(stage.start, base)
    if found is None:
        raise ConfigError(f"stage {stage.name}: from: {stage.start}: {_nothing(recipe, stage, base)}")
    return found.weights


def require_start(recipe: Recipe, stage: Stage, agent: Agent, base: Path) -> None:
    """Raise ConfigError or CheckpointError if the weights that a stage starts from do not fit its model."""
    _require_critic(recipe, stage, base)
    if stage.start is None or earlier_stage(recipe, stage, stage.start) is not None:
        return
    key = f"stage {stage.name}: from: {stage.start}"
    folder = start_of(recipe, stage, base, Path())
    origin = find_origin(stage.start, base)
    assert folder is not None
    assert origin is not None
    _require_stage(origin, key)
    try:
        require_fit(folder, trainable(agent.loaded.model))
    except CheckpointError as error:
        raise CheckpointError(f"{key}: {error}") from None
    if not origin.is_run or not has_adapter(agent.loaded.model):
        return
    run = RunFolder(origin.path)
    if run.recipe.model.adapter != recipe.model.adapter:
        raise ConfigError(f"{key}: its adapter has other settings: {run.recipe.model.adapter}")
    before, now = str(run.provenance.get("weights", "")), fingerprint(agent.loaded.model)
    if before and now and before != now:
        raise ConfigError(
            f"{key}: its adapter is of another model ({run.recipe.model.name}, not {recipe.model.name})"
        )


def _require_stage(origin: Origin, key: str) -> None:
    """Raise ConfigError if the run has no stage of that name."""
    if not origin.is_run or origin.stage is None:
        return
    names = [stage.name for stage in RunFolder(origin.path).recipe.stages]
    if origin.stage not in names:
        raise ConfigError(f"{key}: {origin.path} has no stage {origin.stage}; it has {', '.join(names)}")


def _require_critic(recipe: Recipe, stage: Stage, base: Path) -> None:
    """Raise ConfigError if a stage is to go on with a critic that will not be there."""
    if stage.ppo is None or not stage.ppo.value.inherit:
        return
    number = recipe.stages.index(stage)
    before = recipe.stages[number - 1] if number else None
    if stage.start is not None:
        before = earlier_stage(recipe, stage, stage.start)
        folder = start_of(recipe, stage, base, Path())
        if before is None and folder is not None and (folder / CRITIC_WEIGHTS).is_file():
            return
    if before is None or before.ppo is None or before.ppo.value.critic != stage.ppo.value.critic:
        raise ConfigError(
            f"stage {stage.name}: value.inherit: what it starts from has no critic of kind "
            f"{stage.ppo.value.critic}; only a ppo stage has one (of a run: from: runs/x:stage)"
        )


def origin_record(recipe: Recipe, base: Path) -> dict[str, str]:
    """Hashes of the files that the stages read, as a run's provenance has them: `{"data of warm-up": …}`."""
    record = {}
    for stage in recipe.stages:
        if stage.data is not None:
            record[f"data of {stage.name}"] = sum_of(base / stage.data)
        if stage.trajectories is not None and (found := stored(recipe, stage, base)) is not None:
            record[f"trajectories of {stage.name}"] = _sum(found.trajectories)
        if stage.start is not None and earlier_stage(recipe, stage, stage.start) is None:
            folder = start_of(recipe, stage, base, Path())
            record[f"start of {stage.name}"] = sum_of(folder / WEIGHTS) if folder is not None else ""
    return record


def origin_files(recipe: dict[str, Any], base: Path) -> dict[str, Path]:
    """The files that stages of a resolved recipe take from elsewhere, by the names they are packed under,
    which the recipe is told. Raises ConfigError for what is not there any more.
    """
    names = {stage["name"] for stage in recipe["stages"]}
    files: dict[str, Path] = {}
    for stage in recipe["stages"]:
        holders = [(stage, "from", "weights"), *((s, "trajectories", "trajectories") for s in stage.values())]
        for holder, key, kind in holders:
            place = holder.get(key) if isinstance(holder, dict) else None
            if place is None or place in names:
                continue
            origin = find_origin(place, base)
            if origin is None:
                raise ConfigError(f"{key}: {place} is not there any more: put it back before you pack")
            found = origin.trajectories if kind == "trajectories" else sorted(origin.weights.iterdir())
            holder[key] = f"{kind}-{stage['name']}"
            root = origin.path if origin.path.is_dir() else origin.path.parent
            root = origin.weights if kind == "weights" else root
            files |= {f"{holder[key]}/{file.relative_to(root).as_posix()}": file for file in found}
    return files


def _sum(paths: list[Path]) -> str:
    return hashlib.sha256("".join(map(sum_of, paths)).encode()).hexdigest()


def _nothing(recipe: Recipe, stage: Stage, base: Path) -> str:
    names = [other.name for other in recipe.stages]
    before = ", ".join(names[: names.index(stage.name)]) or "none"
    return f"neither an earlier stage ({before}) nor a run, file or folder in {base.absolute()} or here"
