"""Playing one stage: a source of batches, the loop, and what is kept and written at every step.

The engine is refreshed before whatever it does: the weights may have changed, and what a process computed
before must not matter, so that a resumed run computes what an undisturbed one does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from renshu.evaluation import evaluate
from renshu.models.reference import Reference, base_of, cached, present, reference_of
from renshu.models.sharded import whole
from renshu.pipeline.keeper import Mark
from renshu.pipeline.looks import Looks
from renshu.pipeline.methods import Method, method_of
from renshu.pipeline.origins import start_of
from renshu.pipeline.recipe import Stage
from renshu.pipeline.stand import Going, Saved, Stand
from renshu.train import Snapshot, Trainer
from renshu.train import train as run_loop
from renshu.train.checkpoint import load_critic, load_weights
from renshu.train.optimiser import trainable


def play_stage(stand: Stand, stage: Stage, items: Sequence[Any], saved: Saved | None = None) -> None:
    """Train one stage to its end, or until `stop_when` holds.

    The weights are offered to the keeper at every look at the dev split, at last after the last step. items:
    what it learns from, where it does not sample. saved: a checkpoint in its middle, to go on from.
    """
    looks = Looks(stage.stop_when)
    trainer, method = begin(stand, stage, items)
    if saved is not None:
        saved.put_into(trainer, looks)
    last = saved.step if saved is not None else 0
    began = time.perf_counter() - (saved.state["stage_seconds"] if saved is not None else 0.0)
    stand.watcher.stage_begins(stage, trainer.steps)

    def observe(snapshot: Snapshot) -> str | None:
        nonlocal last
        last = snapshot.step
        due = snapshot.step == trainer.steps or (
            (stage.samples or stage.stop_when is not None) and snapshot.step % stand.recipe.eval.every == 0
        )
        success = look(stand, Mark(stage.name, snapshot.step)) if due else None
        record = stand.processes.led(partial(stand.recorder.step, stage, snapshot, success))
        stand.watcher.stage_step(stage, replace(snapshot, metrics=record), success)
        reason = looks.verdict(success) if due else None
        if reason is None and snapshot.step < trainer.steps:
            if stand.interrupt.asked or snapshot.step % stand.recipe.checkpoints.every == 0:
                seconds = time.perf_counter() - began
                stand.save(Going(stage.name, trainer, looks, snapshot.step, seconds))
            stand.interrupt.check()
        return reason

    reason = run_loop(trainer, method.source, [observe], start=last)
    stand.watcher.stage_ends(stage, reason)
    if (idle := stand.processes.led(partial(stand.recorder.stage_ends, stage))) is not None:
        stand.watcher.noted(idle)
    seconds = time.perf_counter() - began
    stand.played.append(
        {"name": stage.name, "algorithm": stage.algorithm, "steps": last, "seconds": round(seconds, 3)}
    )
    stand.save_stage(stage.name, trainer)
    stand.save()
    stand.interrupt.check()


def begin(stand: Stand, stage: Stage, items: Sequence[Any]) -> tuple[Trainer[Any], Method]:
    """The trainer of a stage at its first step, with the weights with which it begins, or once began."""
    model = stand.agent.loaded.model
    start = start_of(stand.recipe, stage, stand.run.base, stand.run.path)
    if start is None and stand.played:
        start = stand.after_stage(stand.played[-1]["name"])
    if start is not None:
        load_weights(start, trainable(model))
    method = method_of(stand, stage, items)
    if start is not None and stage.ppo is not None and stage.ppo.value.inherit:
        load_critic(start, trainable(model, method.critic))
    with whole(model):
        reference = _reference(stand, stage, method)
    trainer = Trainer(
        model,
        method.algorithm,
        steps=method.steps,
        seed=stand.seed_of(stage),
        reference=reference,
        critic=method.critic,
        processes=stand.processes,
    )
    return trainer, method


def _reference(stand: Stand, stage: Stage, method: Method) -> Reference | None:
    """What the stage is compared with. Of rows that are known beforehand, it is asked once, at the start."""
    algorithm, loaded = method.algorithm, stand.agent.loaded
    if "reference" not in algorithm.needs:
        return None
    if stage.samples:
        return base_of(loaded) if stage.reference == "base" else reference_of(loaded.model)
    credits = [algorithm.credit(method.source(step)) for step in range(method.steps)]
    return cached(
        base_of(loaded) if stage.reference == "base" else present(loaded.model),
        [row for credit in credits for row in (*credit.rows, *credit.probes)],
        model=loaded.model,
        temperature=algorithm.temperature,
        token_budget=algorithm.config.token_budget,
        divided=stand.processes.divided,
    )


def look(stand: Stand, mark: Mark) -> float | None:
    """Success on the dev split with the weights as they are now, which are kept if they are the best."""
    assert stand.environment.tasks is not None
    settings = stand.recipe.eval
    stand.agent.engine.refresh()
    result = evaluate(
        stand.agent.engine,
        stand.agent.chat,
        stand.environment,
        stand.environment.tasks.split("dev")[: settings.dev_tasks],
        arm="dev",
        max_tokens=settings.max_tokens,
        at_once=settings.at_once,
        seed=stand.recipe.seed,
        collect=stand.collect,
    )
    stand.keeper.offer(mark, result.success)
    return result.success
