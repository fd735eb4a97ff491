"""Where a run stands: what its stages share, and what a checkpoint of it holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from renshu.envs import Environment
from renshu.errors import CheckpointError
from renshu.evaluation import Result, read_result, samples_log
from renshu.models.sharded import whole
from renshu.pipeline.agent import Agent
from renshu.pipeline.interrupt import Interrupt
from renshu.pipeline.keeper import Keeper
from renshu.pipeline.looks import Looks
from renshu.pipeline.recipe import Recipe, Stage
from renshu.pipeline.record import Recorder
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.watch import Watcher
from renshu.rollout import collect
from renshu.seeding import stable_hash
from renshu.train import Trainer, checkpoint
from renshu.train.optimiser import trainable
from renshu.train.processes import ALONE, Processes
from renshu.types import Group, Task

Rounds = Callable[[int, int], list[Group]]  # a step, and a round of it → what was played

STATE = (
    *("stage", "stage_step", "stage_seconds", "looks", "bad_updates"),  # of the stage that goes on
    *("played", "measured", "kept", "tokens", "seconds"),
)


@dataclass(frozen=True)
class Going:
    """A stage in the middle. step: steps made. seconds: that it took so far."""

    stage: str
    trainer: Trainer[Any]
    looks: Looks
    step: int
    seconds: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint of a run: its folder and its state. `step` of a stage is 0 between two stages."""

    path: Path
    state: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Saved:
        """Raises CheckpointError if the state is damaged, or of a version that wrote less."""
        state = checkpoint.read_state(path)
        missing = [key for key in STATE if key not in state]
        if missing:
            raise CheckpointError(
                f"{path / 'state.json'} has no {', '.join(missing)}: it is of another version"
            )
        return cls(path, state)

    @property
    def place(self) -> str:
        """Where it stands, in words: `at step 12 of practice`."""
        if self.step:
            return f"at step {self.step} of {self.state['stage']}"
        return (
            f"after {self.state['played'][-1]['name']}" if self.state["played"] else "before its first step"
        )

    @property
    def step(self) -> int:
        return int(self.state["stage_step"])

    def put_into(self, trainer: Trainer[Any], looks: Looks) -> None:
        """Go on in the middle of a stage: weights, moments and what else changes from step to step."""
        checkpoint.load(self.path, trainer.trained, trainer.optimiser)
        trainer.bad_updates = self.state["bad_updates"]
        looks.best, looks.without_rise = self.state["looks"]


@dataclass
class Stand:
    """What all stages of a run share.

    began: when the run began, by `perf_counter`, had it never been broken off. rounds: where the agents play
    that are no environment's, if so. processes: those that play the run together; each has a stand, and what
    one does all do, but only the first writes. played: `stages` of the summary. results: of the arms measured
    so far, in order.
    """

    recipe: Recipe
    environment: type[Environment]
    agent: Agent
    run: RunFolder
    watcher: Watcher
    interrupt: Interrupt
    began: float
    rounds: Rounds | None = None
    processes: Processes = ALONE
    keeper: Keeper = field(init=False)
    recorder: Recorder = field(init=False)
    played: list[dict[str, Any]] = field(default_factory=list)
    results: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.keeper = Keeper(self.agent.loaded, self.checkpoints, self.processes)
        self.recorder = Recorder(self.run, self.agent.chat)

    @property
    def checkpoints(self) -> Path:
        return self.run.path / "checkpoints"

    def after_stage(self, name: str) -> Path:
        """The folder of the weights with which a stage ended."""
        return self.checkpoints / "stages" / name

    def seed_of(self, stage: Stage) -> int:
        """The root of a stage's random streams."""
        return stable_hash(self.recipe.seed, stage.name)

    @property
    def tokens(self) -> dict[str, int]:
        """Of rollouts, evaluations and training: computed, and with every copy."""
        stats = self.agent.engine.stats
        return {
            "computed": int(self.processes.total(stats.computed)) + self.recorder.computed,
            "naive": int(self.processes.total(stats.naive)) + self.recorder.naive,
        }

    def collect(
        self, engine: Any, chat: Any, make_env: Any, tasks: Sequence[Task], **settings: Any
    ) -> list[Group]:
        """`rollout.collect`: each process plays a share of the tasks, and knows of all what was played."""
        with whole(self.agent.loaded.model):
            return self.processes.divided(
                tasks,
                lambda own: collect(engine, chat, make_env, own, **settings),
                key=lambda task: task.id,  # slots of a task that comes twice are counted on
            )

    def save(self, going: Going | None = None) -> None:
        """Write a checkpoint, in the middle of a stage or between two."""
        state = {
            "stage": going.stage if going else None,
            "stage_step": going.step if going else 0,
            "stage_seconds": going.seconds if going else 0.0,
            "looks": [going.looks.best, going.looks.without_rise] if going else None,
            "bad_updates": going.trainer.bad_updates if going else 0,
            "played": self.played,
            "measured": list(self.results),
            "kept": self.keeper.state(),
            "tokens": self.tokens,
            "seconds": time.perf_counter() - self.began,
        }
        checkpoint.save(
            self.checkpoints,
            sum(stage["steps"] for stage in self.played) + (going.step if going else 0),
            going.trainer.trained if going else trainable(self.agent.loaded.model),
            going.trainer.optimiser if going else None,
            state,
            files=self.keeper.files,
            keep=self.recipe.checkpoints.keep,
            processes=self.processes,
        )

    def restore(self, saved: Saved) -> None:
        """Stand where `saved` stood; what was written since is forgotten.

        The weights are put in place where it was written between two stages. Raises CheckpointError or
        DataError.
        """
        state = saved.state
        self.played = list(state["played"])
        self.began -= state["seconds"]
        self.recorder.computed, self.recorder.naive = state["tokens"]["computed"], state["tokens"]["naive"]
        self.keeper.restore(state["kept"], saved.path)
        steps = {stage["name"]: stage["steps"] for stage in self.played}
        left = [stage.name for stage in self.recipe.stages if stage.name not in steps]
        if left:
            steps[left[0]] = saved.step
        self.processes.led(lambda: self.recorder.forget_after(steps))
        self.results = {arm: self._measured(arm) for arm in state["measured"]}
        if not saved.step:
            checkpoint.load_weights(saved.path, trainable(self.agent.loaded.model))

    def _measured(self, arm: str) -> Result:
        return read_result(arm, self.run.evaluation(arm), self.recipe.eval.samples)

    def save_stage(self, name: str, trainer: Trainer[Any]) -> None:
        """Keep the weights with which a stage ended, those of its critic beside them."""
        checkpoint.save_weights(self.after_stage(name), trainer.trained, self.processes)

    def forget_evaluation(self, arm: str) -> Path:
        """The file of an arm that is to be measured, without what an earlier process wrote."""
        log = self.run.evaluation(arm)

        def forget() -> None:
            log.unlink(missing_ok=True)
            samples_log(log).unlink(missing_ok=True)

        self.processes.led(forget)
        return log

    def tidy(self) -> None:
        """Remove what only a broken-off run needs."""
        checkpoint.remove_all(self.checkpoints)
