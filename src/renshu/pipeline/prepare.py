"""From a recipe to everything a run needs, loaded and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from renshu.data.dialogues import reasons
from renshu.envs import Environment
from renshu.evaluation import few_shot_arm
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.check import must_pass
from renshu.pipeline.environments import load_environment
from renshu.pipeline.origins import require_start
from renshu.pipeline.preflight import require_playable, require_room
from renshu.pipeline.recipe import Recipe
from renshu.pipeline.supply import Supplier, Supply
from renshu.pipeline.trackers import require_trackers
from renshu.seeding import stable_hash


@dataclass(frozen=True)
class Prepared:
    """A recipe, all of it loaded and checked.

    supplies: what each stage learns from; None where an earlier stage has yet to sample it. notes: sentences
    about data that was left out.
    """

    recipe: Recipe
    name: str
    base: Path
    environment: type[Environment]
    few_shot: type[Environment] | None
    agent: Agent
    supplies: tuple[Supply | None, ...]
    notes: tuple[str, ...]

    @property
    def supplier(self) -> Supplier:
        return Supplier(self.recipe, self.environment, self.agent, self.base)


def prepare(recipe: Recipe, *, name: str, base: str | Path = ".") -> Prepared:
    """Load everything and check it. Raises a RenshuError that says what to change."""
    base = Path(base)
    require_trackers(recipe.trackers)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    environment = load_environment(recipe.environment, base)
    require_playable(environment, recipe)
    must_pass(recipe, environment, base)
    few_shot = _few_shot(recipe, environment)
    torch.manual_seed(stable_hash(recipe.seed, "adapter"))  # its first weights are random
    agent = build_agent(recipe.model, base, engine=recipe.engine)
    for variant in filter(None, (environment, few_shot)):
        require_room(variant, agent.chat, agent.engine.context)
    for stage in recipe.stages:
        require_start(recipe, stage, agent, base)
    supplier = Supplier(recipe, environment, agent, base)
    supplies = tuple(supplier.supply(stage) for stage in recipe.stages)
    notes = [
        f"stage {stage.name}: {note}"
        for stage, supply in zip(recipe.stages, supplies, strict=True)
        if supply is not None
        for note in supply.notes
    ]
    notes = [*_notes_on_tasks(environment), *notes]
    return Prepared(recipe, name, base, environment, few_shot, agent, supplies, tuple(notes))


def benchmark_name(recipe: Recipe) -> str:
    """`flights` of `flights`, `FlightDesk` of `flights.py:FlightDesk`; of agents elsewhere `posted`."""
    return recipe.env.rpartition(":")[2] if recipe.env is not None else "posted"


def _few_shot(recipe: Recipe, environment: type[Environment]) -> type[Environment] | None:
    if "few-shot" not in recipe.eval.compare:
        return None
    return few_shot_arm(environment, recipe.eval.shots, recipe.seed)


def _notes_on_tasks(environment: type[Environment]) -> list[str]:
    set_aside = environment.tasks.set_aside if environment.tasks is not None else {}
    return [f"tasks: rows set aside ({reasons(set_aside)})"] if set_aside else []
