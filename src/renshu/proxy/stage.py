"""Playing one stage with agents that run elsewhere: whole steps as their episodes come in."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import fmean
from typing import Any

from renshu.pipeline.keeper import Mark
from renshu.pipeline.looks import Looks
from renshu.pipeline.practice import limits_of, sampling_of
from renshu.pipeline.recipe import Stage
from renshu.pipeline.stages import begin
from renshu.pipeline.stand import Going, Saved, Stand
from renshu.proxy.episode import Rules
from renshu.proxy.register import Over, Register
from renshu.serve.worker import Worker
from renshu.train import Finding, Snapshot
from renshu.train import train as run_loop


class Practice:
    """One stage while it is played. The engine rests from the last episode of a step to the end of its
    update.

    A look at dev is what was posted between two updates: it is over when the next step is complete, counts
    for the weights of that time, and may end the stage after that step.
    """

    def __init__(
        self, stand: Stand, stage: Stage, register: Register, worker: Worker, saved: Saved | None
    ) -> None:
        self.stand, self.stage, self.register, self.worker = stand, stage, register, worker
        self.looks = Looks(stage.stop_when)
        stand.rounds = lambda step, number: register.gather(self._check)
        self.trainer, self.method = begin(stand, stage, ())
        self.last, spent = 0, 0.0
        if saved is not None:
            saved.put_into(self.trainer, self.looks)
            self.last, spent = saved.step, saved.state["stage_seconds"]
        self.kept = self.last  # the step at which the latest checkpoint stands
        self.began = time.perf_counter() - spent
        self.reason: str | None = None
        self._asked = False

    def play(self) -> None:
        """To its last step, until `stop_when` holds, or until the agents' program asks for the end.

        Raises KeyboardInterrupt, with all steps saved, and then what else goes wrong.
        """
        stand, stage = self.stand, self.stage
        rules = Rules(sampling_of(stage, stand.agent.chat.stop_ids), limits_of(stage))
        stand.agent.engine.refresh()  # the weights may be those of a checkpoint
        self.register.begin_stage(stage.name, stage.config, rules, self.last)  # type: ignore[arg-type]
        stand.watcher.stage_begins(stage, self.trainer.steps)
        self.worker.wake()
        try:
            self.reason = run_loop(self.trainer, self._source, [self._observe], start=self.last)
        except Over:
            self.reason = "the agents' program asked for the end"
        except KeyboardInterrupt:
            if self._asked and self.kept < self.last:  # else it came in the middle of something
                self._save()
            raise
        stand.watcher.stage_ends(stage, self.reason)
        if self.last:
            self._end()

    def _check(self) -> None:
        """Raises KeyboardInterrupt between two steps."""
        self._asked = self.stand.interrupt.asked
        self.stand.interrupt.check()

    def _source(self, step: int) -> Any:
        groups = self.method.source(step)
        look = self.register.look()
        if look:
            self.looked(fmean(look))
        self.worker.rest()
        return groups

    def looked(self, success: float) -> None:
        """Success of the weights as they are, on what was posted of dev."""
        stand, mark = self.stand, self.register.mark
        stand.keeper.offer(mark, success)
        stand.recorder.looked(mark.stage, mark.step, success)
        if mark.stage == self.stage.name:
            self.reason = self.looks.verdict(success)
        self._save()

    def _observe(self, snapshot: Snapshot) -> str | None:
        stand, ended = self.stand, self.reason
        stand.agent.engine.refresh()  # the weights changed
        self.last = snapshot.step
        over = ended is not None or snapshot.step == self.trainer.steps
        counts = self.register.updated(snapshot.step, last=over)
        found = (*snapshot.findings, *_overruled(counts))
        snapshot = replace(snapshot, metrics={**snapshot.metrics, **counts}, findings=found)
        record = stand.recorder.step(self.stage, snapshot, None)
        stand.watcher.stage_step(self.stage, replace(snapshot, metrics=record), None)
        if not over:
            if stand.interrupt.asked or snapshot.step % stand.recipe.checkpoints.every == 0:
                self._save()
            self.worker.wake()
            stand.interrupt.check()
        return ended

    def _save(self) -> None:
        going = Going(self.stage.name, self.trainer, self.looks, self.last, time.perf_counter() - self.began)
        self.stand.save(going if self.last else None)
        self.kept = self.last

    def _end(self) -> None:
        stand, stage = self.stand, self.stage
        seconds = round(time.perf_counter() - self.began, 3)
        stand.played.append(
            {"name": stage.name, "algorithm": stage.algorithm, "steps": self.last, "seconds": seconds}
        )
        stand.keeper.offer(Mark(stage.name, self.last), None)
        stand.save_stage(stage.name, self.trainer)
        stand.save()


def _overruled(counts: dict[str, float]) -> list[Finding]:
    """What agents asked for in vain, for people."""
    names = [name.removeprefix("ignored/") for name in counts if name.startswith("ignored/")]
    text = f"requests named {', '.join(names)}: the recipe's settings rule, which the loss needs"
    return [Finding("overruled", text)] if names else []
