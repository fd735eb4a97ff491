"""Playing one stage: a source of batches, the loop, and what is kept and written at every step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from renshu.algorithms import grpo, sft
from renshu.engines import Sampling
from renshu.envs import Environment
from renshu.evaluation import evaluate
from renshu.models.reference import reference_of
from renshu.pipeline.agent import Agent
from renshu.pipeline.keeper import Keeper, Mark
from renshu.pipeline.recipe import Recipe, Stage, StopWhen
from renshu.pipeline.record import Recorder
from renshu.pipeline.watch import Watcher
from renshu.rollout import Limits, collect
from renshu.seeding import generator, stable_hash
from renshu.train import SftBatches, Snapshot, Trainer
from renshu.train import train as run_loop
from renshu.types import Group, Row, Task

Source = Callable[[int], Sequence[Any]]  # step → the batch of that step: rows, or groups


@dataclass
class Stand:
    """Where a run stands: what all stages share."""

    recipe: Recipe
    environment: type[Environment]
    agent: Agent
    keeper: Keeper
    recorder: Recorder
    watcher: Watcher
    played: list[dict[str, Any]] = field(default_factory=list)  # `stages` of the summary


def play_stage(stand: Stand, stage: Stage, rows: Sequence[Row]) -> Mark:
    """Train one stage to its end, or until `stop_when` holds; rows: of a supervised stage.

    The weights are offered to the keeper at every look at the dev split, at last after the last step.
    """
    began = time.perf_counter()
    trainer, source = _supervised(stand, stage, rows) if stage.sft is not None else _practice(stand, stage)
    stand.watcher.stage_begins(stage, trainer.steps)
    looks = Looks(stage.stop_when)
    last = 0

    def observe(snapshot: Snapshot) -> str | None:
        nonlocal last
        last = snapshot.step
        stand.agent.engine.refresh()  # the weights changed
        due = snapshot.step == trainer.steps or (
            (stage.grpo is not None or stage.stop_when is not None)
            and snapshot.step % stand.recipe.eval.every == 0
        )
        success = look(stand, Mark(stage.name, snapshot.step)) if due else None
        record = stand.recorder.step(stage, snapshot, success)
        stand.watcher.stage_step(stage, replace(snapshot, metrics=record), success)
        return looks.verdict(success) if due else None

    reason = run_loop(trainer, source, [observe])
    stand.watcher.stage_ends(stage, reason)
    seconds = time.perf_counter() - began
    stand.played.append(
        {"name": stage.name, "algorithm": stage.algorithm, "steps": last, "seconds": round(seconds, 3)}
    )
    return Mark(stage.name, last)


def look(stand: Stand, mark: Mark) -> float | None:
    """Success on the dev split with the weights as they are now, which are kept if they are the best."""
    assert stand.environment.tasks is not None
    settings = stand.recipe.eval
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


class Looks:
    """The looks of one stage at the dev split, and whether they say that it should end."""

    def __init__(self, stop_when: StopWhen | None) -> None:
        self.stop_when = stop_when
        self.best = -1.0
        self.without_rise = 0

    def verdict(self, success: float | None) -> str | None:
        """Why the stage should end now, or None."""
        if self.stop_when is None or success is None:
            return None
        self.without_rise = 0 if success > self.best else self.without_rise + 1
        self.best = max(self.best, success)
        wanted, patience = self.stop_when.success, self.stop_when.patience
        if wanted is not None and success >= wanted:
            return f"success on dev is {success:.0%}, {wanted:.0%} was asked for"
        if patience is not None and self.without_rise >= patience:
            return f"success on dev has not risen in {patience} looks"
        return None


class TaskOrder:
    """Which tasks a step practises on: epochs, each a permutation with its own seed."""

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
    order = TaskOrder(stand.environment.tasks.split("train"), config.tasks_per_step, seed)
    sampling = Sampling(**sample.model_dump(exclude={"turns", "seconds"}), stop_ids=stand.agent.chat.stop_ids)

    def source(step: int) -> Sequence[Group]:
        return collect(
            stand.agent.engine,
            stand.agent.chat,
            stand.environment,
            order(step),
            group=config.group,
            sampling=sampling,
            limits=Limits(turns=stage.sample.turns, seconds=stage.sample.seconds),
            seed=seed,
            step=step,
        )

    return Trainer(model, algorithm, steps=config.steps, seed=seed, reference=reference), source
