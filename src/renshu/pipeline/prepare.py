"""From a recipe to everything a run needs, loaded and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from renshu.envs import Environment
from renshu.evaluation import few_shot_arm
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.check import must_pass
from renshu.pipeline.dialogues import Supply, reasons, supply
from renshu.pipeline.environments import load_environment
from renshu.pipeline.preflight import require_playable, require_room
from renshu.pipeline.recipe import Recipe, Stage
from renshu.seeding import stable_hash
from renshu.types import Row


@dataclass(frozen=True)
class Prepared:
    """A recipe, all of it loaded and checked.

    rows: of each stage, empty where it is not supervised. notes: sentences about data that was left out.
    """

    recipe: Recipe
    name: str
    base: Path
    environment: type[Environment]
    few_shot: type[Environment] | None
    agent: Agent
    rows: tuple[Sequence[Row], ...]
    notes: tuple[str, ...]


def prepare(recipe: Recipe, *, name: str, base: str | Path = ".") -> Prepared:
    """Load everything and check it. Raises a RenshuError that says what to change."""
    base = Path(base)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    environment = load_environment(recipe.env, base)
    require_playable(environment, recipe)
    must_pass(recipe, environment, base)
    few_shot = _few_shot(recipe, environment)
    torch.manual_seed(stable_hash(recipe.seed, "adapter"))  # its first weights are random
    agent = build_agent(recipe.model, base)
    for variant in filter(None, (environment, few_shot)):
        require_room(variant, agent.chat, agent.engine.context)
    supplies = [_supply(recipe, stage, environment, agent, base) for stage in recipe.stages]
    rows = tuple(supply.rows for supply in supplies)
    notes = [
        f"stage {stage.name}: {note}"
        for stage, supply in zip(recipe.stages, supplies, strict=True)
        for note in supply.notes
    ]
    notes = [*_notes_on_tasks(environment), *notes]
    return Prepared(recipe, name, base, environment, few_shot, agent, rows, tuple(notes))


def benchmark_name(recipe: Recipe) -> str:
    """`flights` of `flights`, `FlightDesk` of `flights.py:FlightDesk`."""
    return recipe.env.rpartition(":")[2]


def _few_shot(recipe: Recipe, environment: type[Environment]) -> type[Environment] | None:
    if "few-shot" not in recipe.eval.compare:
        return None
    return few_shot_arm(environment, recipe.eval.shots, recipe.seed)


def _notes_on_tasks(environment: type[Environment]) -> list[str]:
    set_aside = environment.tasks.set_aside if environment.tasks is not None else {}
    return [f"tasks: rows set aside ({reasons(set_aside)})"] if set_aside else []


def _supply(recipe: Recipe, stage: Stage, environment: type[Environment], agent: Agent, base: Path) -> Supply:
    """What a supervised stage trains on, cut to what the model can read; nothing for other stages."""
    if stage.sft is None:
        return Supply()
    seed = stable_hash(recipe.seed, stage.name)
    return supply(stage.sft, environment, agent.chat, base, seed, agent.engine.context)
