"""Playing one stage: a source of batches, the loop, and what is kept and written at every step.

The engine is refreshed before whatever it does: the weights may have changed, and what a process computed
before must not matter, so that a resumed run computes what an undisturbed one does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from renshu.algorithms import grpo, sft
from renshu.engines import Sampling
from renshu.evaluation import evaluate
from renshu.models.reference import reference_of
from renshu.pipeline.keeper import Mark
from renshu.pipeline.looks import Looks
from renshu.pipeline.recipe import Stage
from renshu.pipeline.stand import Going, Saved, Stand
from renshu.rollout import Limits, collect, collect_rounds
from renshu.seeding import generator, stable_hash
from renshu.train import SftBatches, Snapshot, Trainer
from renshu.train import train as run_loop
from renshu.train.checkpoint import load_weights
from renshu.train.optimiser import trainable
from renshu.types import Group, Row, Task

Source = Callable[[int], Sequence[Any]]  # step → the batch of that step: rows, or groups


def play_stage(stand: Stand, stage: Stage, rows: Sequence[Row], saved: Saved | None = None) -> None:
    """Train one stage to its end, or until `stop_when` holds; rows: of a supervised stage.

    The weights are offered to the keeper at every look at the dev split, at last after the last step. saved:
    a checkpoint in the middle of this stage, to go on from.
    """
    looks = Looks(stage.stop_when)
    trainer, source = _begin(stand, stage, rows, resumed=saved is not None)
    if saved is not None:
        saved.put_into(trainer, looks)
    last = saved.step if saved is not None else 0
    began = time.perf_counter() - (saved.state["stage_seconds"] if saved is not None else 0.0)
    stand.watcher.stage_begins(stage, trainer.steps)

    def observe(snapshot: Snapshot) -> str | None:
        nonlocal last
        last = snapshot.step
        due = snapshot.step == trainer.steps or (
            (stage.grpo is not None or stage.stop_when is not None)
            and snapshot.step % stand.recipe.eval.every == 0
        )
        success = look(stand, Mark(stage.name, snapshot.step)) if due else None
        record = stand.recorder.step(stage, snapshot, success)
        stand.watcher.stage_step(stage, replace(snapshot, metrics=record), success)
        reason = looks.verdict(success) if due else None
        if reason is None and snapshot.step < trainer.steps:
            if stand.interrupt.asked or snapshot.step % stand.recipe.checkpoints.every == 0:
                seconds = time.perf_counter() - began
                stand.save(Going(stage.name, trainer, looks, snapshot.step, seconds))
            stand.interrupt.check()
        return reason

    reason = run_loop(trainer, source, [observe], start=last)
    stand.watcher.stage_ends(stage, reason)
    seconds = time.perf_counter() - began
    stand.played.append(
        {"name": stage.name, "algorithm": stage.algorithm, "steps": last, "seconds": round(seconds, 3)}
    )
    stand.save_stage(stage.name)
    stand.save()
    stand.interrupt.check()


def _begin(stand: Stand, stage: Stage, rows: Sequence[Row], *, resumed: bool) -> tuple[Trainer[Any], Source]:
    """The trainer of a stage at its first step. A KL is to the weights with which the stage once began."""
    if stage.sft is not None:
        return _supervised(stand, stage, rows)
    if resumed and stage.grpo is not None and stage.grpo.beta and stand.played:
        load_weights(stand.after_stage(stand.played[-1]["name"]), trainable(stand.agent.loaded.model))
    return _practice(stand, stage)


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
    )
    stand.keeper.offer(mark, result.success)
    return result.success


class TaskOrder:
    """Which tasks a step may practise on: epochs, each a permutation with its own seed."""

    def __init__(self, tasks: Sequence[Task], per_step: int, seed: int) -> None:
        self.tasks, self.per_step, self.seed = tasks, per_step, seed
        self._orders: dict[int, list[int]] = {}

    def __call__(self, step: int) -> list[Task]:
        positions = range(step * self.per_step, (step + 1) * self.per_step)
        places = [divmod(position, len(self.tasks)) for position in positions]
        return [self.tasks[self._order(epoch)[index]] for epoch, index in places]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            order = list(range(len(self.tasks)))
            generator("practice", self.seed, "epoch", epoch).shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]


def _supervised(stand: Stand, stage: Stage, rows: Sequence[Row]) -> tuple[Trainer[Any], Source]:
    assert stage.sft is not None
    seed = stable_hash(stand.recipe.seed, stage.name)
    batches = SftBatches(rows, stage.sft, seed=seed)
    return Trainer(
        stand.agent.loaded.model, sft.algorithm(stage.sft), steps=batches.steps, seed=seed
    ), batches


def _practice(stand: Stand, stage: Stage) -> tuple[Trainer[Any], Source]:
    assert stage.grpo is not None
    assert stand.environment.tasks is not None
    config, sample = stage.grpo, stage.sample
    seed = stable_hash(stand.recipe.seed, stage.name)
    algorithm = grpo.algorithm(config, temperature=sample.temperature, max_tokens=sample.max_tokens)
    model = stand.agent.loaded.model
    reference = reference_of(model) if "reference" in algorithm.needs else None
    rounds = 1 + config.dynamic_sampling
    order = TaskOrder(stand.environment.tasks.split("train"), config.tasks_per_step * rounds, seed)
    sampling = Sampling(**sample.model_dump(exclude={"turns", "seconds"}), stop_ids=stand.agent.chat.stop_ids)

    def source(step: int) -> Sequence[Group]:
        stand.agent.engine.refresh()
        tasks = order(step)

        def sample(number: int) -> list[Group]:
            return collect(
                stand.agent.engine,
                stand.agent.chat,
                stand.environment,
                tasks[number * config.tasks_per_step :][: config.tasks_per_step],
                group=config.group,
                sampling=sampling,
                limits=Limits(turns=stage.sample.turns, seconds=stage.sample.seconds),
                seed=stable_hash(seed, "round", number) if number else seed,  # a task may come again
                step=step,
            )

        return collect_rounds(sample, lambda groups: grpo.enough(groups, config), config.dynamic_sampling)

    return Trainer(model, algorithm, steps=config.steps, seed=seed, reference=reference), source
