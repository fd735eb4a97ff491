"""The course of a run, from wherever it stands to its summary: arms, stages, what is kept."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from renshu.envs import Environment
from renshu.errors import CheckpointError, OtherProcessFailed
from renshu.evaluation import Result, evaluate, samples_log
from renshu.pipeline.check import must_pass_record
from renshu.pipeline.interrupt import Interrupt
from renshu.pipeline.keeper import Mark
from renshu.pipeline.prepare import Prepared, benchmark_name
from renshu.pipeline.recipe import Stage
from renshu.pipeline.run_folder import FAILURE, SUMMARY, RunFolder
from renshu.pipeline.stages import play_stage
from renshu.pipeline.stand import Saved, Stand
from renshu.pipeline.supply import Supply
from renshu.pipeline.trackers import Tracking
from renshu.pipeline.watch import Watcher
from renshu.report import build_report
from renshu.train.checkpoint import latest
from renshu.train.processes import ALONE, Processes


def run_course(
    prepared: Prepared,
    run: RunFolder,
    watcher: Watcher,
    began: float,
    saved: Saved | None = None,
    processes: Processes = ALONE,
) -> None:
    """Play all that is left of a run and let go of its folder. began: this start, by `perf_counter`.

    saved: the checkpoint to go on from. Whatever ends the run before its time, KeyboardInterrupt included,
    gets a note that says what is kept and how to go on.
    """
    again = "renshu resume {run}"
    if processes.size > 1:
        again += f" --processes {processes.size}"
    with standing(prepared, run, watcher, began, saved, again, processes) as stand:
        _play(stand, prepared, saved)
        _conclude(stand, prepared)


@contextlib.contextmanager
def standing(
    prepared: Prepared,
    run: RunFolder,
    watcher: Watcher,
    began: float,
    saved: Saved | None,
    again: str = "renshu resume {run}",
    processes: Processes = ALONE,
) -> Iterator[Stand]:
    """Stand where a run begins, or where `saved` stood; at last let go of its folder. again: the command that
    goes on with one that was broken off.
    """
    played = saved.state["played"] if saved is not None else []
    tracking = Tracking(watcher, run, done=sum(stage["steps"] for stage in played))

    def told() -> None:
        watcher.noted("the run ends after this step; Ctrl-C again ends it at once")

    try:
        if processes.leads:
            tracking.start(prepared.recipe)
        with Interrupt(told, processes.any) as interrupt:
            stand = Stand(
                prepared.recipe,
                prepared.environment,
                prepared.agent,
                run,
                tracking,
                interrupt,
                began,
                processes=processes,
            )
            if saved is None:
                _begin(stand, prepared)
            else:
                stand.restore(saved)
            yield stand
    except BaseException as error:
        watcher.broken_off()
        cause = processes.cause(error)
        cause.add_note(what_is_kept(run, again.format(run=run.path)))
        if not isinstance(cause, KeyboardInterrupt | OtherProcessFailed):
            with contextlib.suppress(OSError):  # the disk may be full
                run.write_json(FAILURE, {"error": f"{type(cause).__name__}: {cause}"})
        if cause is not error:
            raise cause from error
        raise
    finally:
        tracking.finish()
        run.close()


def _begin(stand: Stand, prepared: Prepared) -> None:
    stand.processes.led(lambda: stand.recorder.notes(prepared.notes))
    for note in prepared.notes:
        stand.watcher.noted(note)
    stand.save()


def _play(stand: Stand, prepared: Prepared, saved: Saved | None) -> None:
    """All arms and stages that are not over yet, with a checkpoint after each."""
    before = {"few-shot": prepared.few_shot} if prepared.few_shot is not None else {}
    if "base" in stand.recipe.eval.compare:
        before = {"base": prepared.environment, **before}
    for arm, environment in before.items():
        if arm not in stand.results:
            _measure(stand, arm, environment)
            stand.save()
    for stage, supply in zip(stand.recipe.stages, prepared.supplies, strict=True):
        if stage.name not in [played["name"] for played in stand.played]:
            middle = saved if saved is not None and saved.step else None
            if supply is None:
                supply = _supplied(stand, prepared, stage, noted=middle is not None)
            play_stage(stand, stage, supply.items, middle)
            saved = None  # the later stages begin at their first step
        if stage.name not in stand.results:
            _measure(stand, stage.name, stand.environment)
            stand.save()


def _supplied(stand: Stand, prepared: Prepared, stage: Stage, *, noted: bool) -> Supply:
    """What a stage learns from that an earlier one has sampled. noted: what is left out was said before."""
    supply = prepared.supplier.supply(stage, stand.run.path)
    assert supply is not None
    if not noted:
        notes = [f"stage {stage.name}: {note}" for note in supply.notes]
        stand.processes.led(lambda: stand.recorder.notes(notes, stage.name))
        for note in notes:
            stand.watcher.noted(note)
    return supply


def _conclude(stand: Stand, prepared: Prepared) -> None:
    """Put the best weights in place, measure them, write the summary and the report."""
    ends = {Mark(stage["name"], stage["steps"]) for stage in stand.played}
    kept = stand.keeper.finish()
    stand.agent.engine.refresh()  # the weights changed
    if kept in ends:  # greedy on the same weights: measuring again would tell the same
        log = stand.forget_evaluation("final")
        stand.processes.led(lambda: _copy_evaluation(log.with_name(f"{kept.stage}.jsonl"), log))
        stand.results["final"] = replace(stand.results[kept.stage], arm="final")
        stand.watcher.evaluated(_summary_of(stand, "final"))
    else:
        _measure(stand, "final", stand.environment)
    stand.processes.led(lambda: _write_cases(stand, prepared))
    write_summary(stand, prepared.name, [_summary_of(stand, arm) for arm in stand.results])


def _copy_evaluation(measured: Path, log: Path) -> None:
    shutil.copyfile(measured, log)
    if samples_log(measured).is_file():
        shutil.copyfile(samples_log(measured), samples_log(log))


def _write_cases(stand: Stand, prepared: Prepared) -> None:
    cases = must_pass_record(stand.recipe, stand.environment, prepared.base)
    if cases is not None:
        stand.run.write_json("must_pass.json", cases)


def write_summary(stand: Stand, name: str, arms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The end of a run: its summary and report; what only a broken-off run needs is removed. name: of the
    recipe. Returns the summary.
    """
    summary = {
        "recipe": name,
        "seed": stand.recipe.seed,
        "seconds": round(time.perf_counter() - stand.began, 3),
        "stages": stand.played,
        "evaluation": {benchmark_name(stand.recipe): {"arms": list(arms)}},
        "tokens": stand.tokens,
    }

    def write() -> None:
        stand.run.write_json(SUMMARY, summary)
        build_report(stand.run.path)
        stand.tidy()

    stand.processes.led(write)
    return summary


def _measure(stand: Stand, arm: str, environment: type[Environment]) -> None:
    """Measure an arm on the test split with the weights as they are now."""
    assert environment.tasks is not None
    settings = stand.recipe.eval

    def progress(done: int, tasks: int) -> None:
        stand.watcher.evaluating(arm, done, tasks)
        stand.interrupt.check()

    log = stand.forget_evaluation(arm)
    stand.agent.engine.refresh()
    stand.results[arm] = evaluate(
        stand.agent.engine,
        stand.agent.chat,
        environment,
        environment.tasks.split("test")[: settings.tasks],
        arm=arm,
        max_tokens=settings.max_tokens,
        at_once=settings.at_once,
        seed=stand.recipe.seed,
        tries=settings.samples,
        log=log if stand.processes.leads else None,
        progress=progress,
        collect=stand.collect,
    )
    stand.watcher.evaluated(_summary_of(stand, arm))


def _summary_of(stand: Stand, arm: str) -> dict[str, Any]:
    base: Result | None = stand.results.get("base") if arm != "base" else None
    return stand.results[arm].summary(base)


def what_is_kept(run: RunFolder, again: str) -> str:
    """What a run that was broken off still has, and how it goes on. again: the command for it."""
    if (run.path / SUMMARY).is_file():
        return f"the run itself is complete; the report can be written again: renshu report {run.path}"
    place = place_of_latest(run)
    if place is None:
        return f"nothing is kept yet: start again with --overwrite ({run.path})"
    return f"kept: the run {place}; go on with: {again}"


def place_of_latest(run: RunFolder) -> str | None:
    """`at step 12 of practice`: where the latest checkpoint stands; None if there is none."""
    try:
        path = latest(run.path / "checkpoints").path
        return Saved.read(path).place if path is not None else None
    except CheckpointError:
        return None
