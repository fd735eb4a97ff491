"""The course of a run whose agents run elsewhere: stages, the choice of weights, what was measured."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from typing import Any

from renshu.engines import Sampling
from renshu.envs import Environment
from renshu.evaluation import Outcome, Result
from renshu.evaluation.records import outcome_record
from renshu.jsonl import read_rows
from renshu.pipeline.course import write_summary
from renshu.pipeline.keeper import Mark
from renshu.pipeline.stand import Saved, Stand
from renshu.proxy.episode import Episode, Rules
from renshu.proxy.register import Register
from renshu.proxy.stage import Practice
from renshu.serve.worker import Worker


class Elsewhere(Environment):
    """The agents' own program: no tools, no tasks, no reward that Renshu knew of."""


class Course:
    """A run from wherever it stands to its end; played by the main thread."""

    def __init__(self, stand: Stand, name: str, patience: float) -> None:
        """name: of the recipe. patience: seconds until a silent episode counts as abandoned."""
        self.stand, self.name = stand, name
        agent, settings = stand.agent, stand.recipe.eval
        greedy = Sampling(settings.max_tokens, temperature=0.0, stop_ids=agent.chat.stop_ids)
        self.register = Register(
            agent.chat,
            agent.engine,
            Rules(greedy),
            seed=stand.recipe.seed,
            patience=patience,
            evaluated=self._evaluated,
        )
        self.worker = Worker(agent.engine, settings.at_once)

    def play(self, saved: Saved | None) -> dict[str, Any]:
        """Everything that is left; returns the summary."""
        stand, register = self.stand, self.register
        steps = {stage["name"]: stage["steps"] for stage in stand.played}
        register.updates = sum(steps.values()) + (saved.step if saved is not None else 0)
        register.mark = Mark(*list(steps.items())[-1]) if steps else Mark("", 0)
        self._forget(steps | ({saved.state["stage"]: saved.step} if saved is not None and saved.step else {}))
        for stage in stand.recipe.stages:
            if stage.name not in steps and not register.finish_asked:
                Practice(stand, stage, register, self.worker, saved if saved and saved.step else None).play()
                saved = None  # the later stages begin at their first step
        self._choose()
        self.register.wait_for_end(self._nothing)
        return write_summary(stand, self.name, [*map(self._summary, self._arms())])

    def _choose(self) -> None:
        """Take what still comes of dev; put the best weights in place once they are wanted."""
        stand, register = self.stand, self.register
        stand.agent.engine.refresh()
        register.practised()
        self.worker.wake()
        if not stand.interrupt.asked:
            register.wait_for_choice(self._nothing)
        look = register.look()
        if look or stand.keeper.best is None:
            success = fmean(look) if look else None
            stand.keeper.offer(register.mark, success)
            if success is not None:
                stand.recorder.looked(register.mark.stage, register.mark.step, success)
        self.worker.rest()
        stand.save()
        kept = stand.keeper.finish()
        stand.agent.engine.refresh()
        register.final(kept)
        self.worker.wake()
        stand.watcher.noted(f"kept: the weights after step {kept.step} of {kept.stage or 'nothing'}")

    def _nothing(self) -> None:
        """All steps are made: Ctrl-C asks for the end."""
        if self.stand.interrupt.asked:
            self.register.finish()

    def _evaluated(self, episode: Episode) -> None:
        """Write an episode of test into the file of its arm, as soon as it is over."""
        if episode.split != "test":
            return
        mark = {"stage": episode.mark.stage, "step": episode.mark.step}
        record = {**outcome_record(episode.trajectory()), **mark}
        self.stand.run.append_lines(f"evaluation/{self._arm(episode.mark)}.jsonl", [record])

    def _arm(self, mark: Mark) -> str:
        """What the weights are called in tables: base, a stage at its end, `STAGE-STEP`, or final."""
        if self.register.phase in ("final", "over"):
            return "final"
        if not mark.step:
            return "base"
        ended = {"name": mark.stage, "steps": mark.step}.items()
        at_end = any(ended <= stage.items() for stage in self.stand.played)
        return mark.stage if at_end else f"{mark.stage}-{mark.step}"

    def _forget(self, steps: dict[str, int]) -> None:
        """Remove what was measured of weights that are no more. steps: how many are made, by stage."""
        for path in self.stand.run.evaluation("base").parent.glob("*.jsonl"):
            rows = read_rows(path, ("stage", "step"))
            gone = any(row["step"] > steps.get(row["stage"], 0) for row in rows)
            if path.stem == "final" or gone:
                path.unlink()

    def _arms(self) -> list[Result]:
        """Every arm, base first and final last; the first episode of a task counts."""
        found: list[tuple[tuple[int, int], Result]] = []
        order = ["", *(stage.name for stage in self.stand.recipe.stages)]
        for path in self.stand.run.evaluation("base").parent.glob("*.jsonl"):
            rows = read_rows(path, ("stage", "step"))
            outcomes: dict[str, Outcome] = {}
            for outcome in map(Outcome.of, rows):
                outcomes.setdefault(outcome.task, outcome)
            place = (order.index(rows[0]["stage"]), rows[0]["step"])
            result = Result(path.stem, tuple(outcomes[task] for task in sorted(outcomes)))
            found.append(((len(order), 0) if path.stem == "final" else place, result))
        arms = [result for _, result in sorted(found, key=lambda pair: pair[0])]
        return arms if arms and arms[-1].arm == "final" else [*arms, Result("final", ())]

    def _summary(self, result: Result) -> dict[str, Any]:
        """An arm, compared with base on the tasks that both were measured on."""
        base = next((other for other in self._arms() if other.arm == "base"), None)
        summary = result.summary()
        if base is not None and result.arm != "base":
            common = set(base.tasks) & set(result.tasks)
            summary["p_vs_base"] = _of(result, common).against(_of(base, common))
        return summary


def _of(result: Result, tasks: set[str]) -> Result:
    return replace(result, outcomes=tuple(o for o in result.outcomes if o.task in tasks))
