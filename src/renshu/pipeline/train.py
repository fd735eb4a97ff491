"""`renshu train` as a function: a recipe becomes objects, the objects a run folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from renshu.envs import Environment
from renshu.errors import ConfigError
from renshu.evaluation import Result, evaluate, solved_dialogues, with_examples
from renshu.pipeline.agent import Agent, build_agent
from renshu.pipeline.dialogues import Supply, reasons, supply
from renshu.pipeline.environments import load_environment
from renshu.pipeline.keeper import Keeper
from renshu.pipeline.preflight import check_environment, check_prompts
from renshu.pipeline.provenance import provenance
from renshu.pipeline.recipe import Recipe, Stage, dump_recipe
from renshu.pipeline.record import Recorder
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.stages import Stand, play_stage
from renshu.pipeline.watch import Watcher
from renshu.report import build_report
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


def train_recipe(
    recipe: Recipe,
    *,
    name: str,
    base: str | Path = ".",
    overwrite: bool = False,
    watcher: Watcher | None = None,
) -> Path:
    """Play all stages, measure every arm on held-out tasks, write the run folder and return its path.

    name: of the recipe. base: the folder that its relative paths start from. What can be known to fail
    raises a RenshuError before the run folder is made.
    """
    began = time.perf_counter()
    return play(prepare(recipe, name=name, base=base), overwrite=overwrite, watcher=watcher, began=began)


def prepare(recipe: Recipe, *, name: str, base: str | Path = ".") -> Prepared:
    """Load everything and check it. Raises a RenshuError that says what to change."""
    base = Path(base)
    if recipe.threads is not None:
        torch.set_num_threads(recipe.threads)
    environment = load_environment(recipe.env, base)
    check_environment(environment, recipe)
    few_shot = _few_shot(recipe, environment)
    agent = build_agent(recipe.model, base)
    for variant in filter(None, (environment, few_shot)):
        check_prompts(variant, agent.chat, agent.engine.context)
    supplies = [_supply(recipe, stage, environment, agent, base) for stage in recipe.stages]
    rows = tuple(supply.rows for supply in supplies)
    notes = [
        f"stage {stage.name}: {note}"
        for stage, supply in zip(recipe.stages, supplies, strict=True)
        for note in supply.notes
    ]
    notes = [*_notes_on_tasks(environment), *notes]
    return Prepared(recipe, name, base, environment, few_shot, agent, rows, tuple(notes))


def play(
    prepared: Prepared, *, overwrite: bool = False, watcher: Watcher | None = None, began: float | None = None
) -> Path:
    """Train and measure what was prepared; returns the run folder. began: the start, by `perf_counter`."""
    began = time.perf_counter() if began is None else began
    run = RunFolder.create(out_folder(prepared.recipe, prepared.name), overwrite=overwrite)
    try:
        _play(prepared, run, watcher or Watcher(), began)
    finally:
        run.close()
    return run.path


def _play(prepared: Prepared, run: RunFolder, watcher: Watcher, began: float) -> None:
    recipe, agent = prepared.recipe, prepared.agent
    run.write_text("recipe.resolved.yaml", dump_recipe(recipe))
    run.write_json("provenance.json", provenance(recipe, prepared.environment, agent, prepared.base))
    stand = Stand(
        recipe,
        prepared.environment,
        agent,
        Keeper(agent.loaded, run.path / "checkpoints"),
        Recorder(run, agent.loaded.tokenizer),
        watcher,
    )
    stand.recorder.notes(prepared.notes)
    for note in prepared.notes:
        stand.watcher.noted(note)
    arms = _arms(stand, run, prepared)
    summary = {
        "recipe": prepared.name,
        "seed": recipe.seed,
        "seconds": round(time.perf_counter() - began, 3),
        "stages": stand.played,
        "evaluation": {benchmark_name(recipe): {"arms": arms}},
        "tokens": {
            "computed": agent.engine.stats.computed + stand.recorder.computed,
            "naive": agent.engine.stats.naive + stand.recorder.naive,
        },
    }
    run.write_json("summary.json", summary)
    build_report(run.path)


def out_folder(recipe: Recipe, name: str) -> Path:
    place = recipe.out.replace("{recipe}", name).replace("{seed}", str(recipe.seed))
    try:
        return Path(place).expanduser()
    except RuntimeError as error:  # there is no such user
        raise ConfigError(f"out: {place}: {error}") from None


def benchmark_name(recipe: Recipe) -> str:
    """`flights` of `flights`, `FlightDesk` of `flights.py:FlightDesk`."""
    return recipe.env.rpartition(":")[2]


def _arms(stand: Stand, run: RunFolder, prepared: Prepared) -> list[dict[str, Any]]:
    """Play all stages; the arms of the summary in the order in which they were measured."""
    compare = stand.recipe.eval.compare
    base = _measure(stand, run, "base", stand.environment) if "base" in compare else None
    arms = [] if base is None else [base.summary()]

    def add(result: Result) -> None:
        arms.append(result.summary(base))
        stand.watcher.evaluated(arms[-1])

    if arms:
        stand.watcher.evaluated(arms[0])
    if prepared.few_shot is not None:
        add(_measure(stand, run, "few-shot", prepared.few_shot))
    results = {}
    for stage, rows in zip(stand.recipe.stages, prepared.rows, strict=True):
        mark = play_stage(stand, stage, rows)
        results[mark] = _measure(stand, run, stage.name, stand.environment)
        add(results[mark])
    kept = stand.keeper.finish()
    stand.agent.engine.refresh()  # the weights changed
    if kept in results:  # greedy on the same weights: measuring again would tell the same
        final = replace(results[kept], arm="final")
        shutil.copyfile(run.file("evaluation", f"{kept.stage}.jsonl"), run.file("evaluation", "final.jsonl"))
    else:
        final = _measure(stand, run, "final", stand.environment)
    add(final)
    return arms


def _measure(stand: Stand, run: RunFolder, arm: str, environment: type[Environment]) -> Result:
    assert environment.tasks is not None
    settings = stand.recipe.eval
    return evaluate(
        stand.agent.engine,
        stand.agent.chat,
        environment,
        environment.tasks.split("test")[: settings.tasks],
        arm=arm,
        max_tokens=settings.max_tokens,
        at_once=settings.at_once,
        seed=stand.recipe.seed,
        log=run.file("evaluation", f"{arm}.jsonl"),
        progress=partial(stand.watcher.evaluating, arm),
    )


def _few_shot(recipe: Recipe, environment: type[Environment]) -> type[Environment] | None:
    if "few-shot" not in recipe.eval.compare:
        return None
    assert environment.tasks is not None
    tasks = environment.tasks.split("train")[: recipe.eval.shots]
    return with_examples(environment, solved_dialogues(environment, tasks, recipe.seed))


def _notes_on_tasks(environment: type[Environment]) -> list[str]:
    set_aside = environment.tasks.set_aside if environment.tasks is not None else {}
    return [f"tasks: rows set aside ({reasons(set_aside)})"] if set_aside else []


def _supply(recipe: Recipe, stage: Stage, environment: type[Environment], agent: Agent, base: Path) -> Supply:
    """What a supervised stage trains on, cut to what the model can read; nothing for other stages."""
    if stage.sft is None:
        return Supply()
    seed = stable_hash(recipe.seed, stage.name)
    return supply(stage.sft, environment, agent.chat, base, seed, agent.engine.context)
