"""A source of batches for stages that sample: which tasks a step practises on, and the rollouts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from renshu.algorithms.protocol import PracticeConfig
from renshu.engines import Sampling
from renshu.pipeline.recipe import Stage
from renshu.pipeline.stand import Rounds, Stand
from renshu.rollout import Limits, collect_rounds
from renshu.seeding import generator, stable_hash
from renshu.types import Group, Task


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


def rollouts(
    stand: Stand,
    stage: Stage,
    config: PracticeConfig,
    *,
    further: int = 0,
    enough: Callable[[Sequence[Group]], bool] = lambda groups: True,
) -> Callable[[int], list[Group]]:
    """A source: the groups that the policy, as it is then, samples in a step.

    further: rounds that a step may sample beside its first, until its groups are `enough`.
    """
    play = stand.rounds or _in_environment(stand, stage, config, further)
    return lambda step: collect_rounds(partial(play, step), enough, further)


def _in_environment(stand: Stand, stage: Stage, config: PracticeConfig, further: int) -> Rounds:
    assert stand.environment.tasks is not None
    seed = stand.seed_of(stage)
    tasks = stand.environment.tasks.split("train")
    order = TaskOrder(tasks, config.tasks_per_step * (1 + further), seed)
    sampling = sampling_of(stage, stand.agent.chat.stop_ids)

    def play(step: int, number: int) -> list[Group]:
        if not number:
            stand.agent.engine.refresh()
        return stand.collect(
            stand.agent.engine,
            stand.agent.chat,
            stand.environment,
            order(step)[number * config.tasks_per_step :][: config.tasks_per_step],
            group=config.group,
            sampling=sampling,
            limits=limits_of(stage),
            seed=stable_hash(seed, "round", number) if number else seed,  # a task may come again
            step=step,
        )

    return play


def sampling_of(stage: Stage, stop_ids: frozenset[int]) -> Sampling:
    return Sampling(**stage.sample.model_dump(exclude={"turns", "seconds"}), stop_ids=stop_ids)


def limits_of(stage: Stage) -> Limits:
    return Limits(turns=stage.sample.turns, seconds=stage.sample.seconds)
