"""`renshu resume` as a function: a run that was broken off goes on where its last checkpoint stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from renshu.errors import ConfigError
from renshu.pipeline.course import run_course
from renshu.pipeline.preflight import require_divisible
from renshu.pipeline.prepare import Prepared, prepare
from renshu.pipeline.provenance import differences, provenance, without_circumstances
from renshu.pipeline.run_folder import FAILURE, SUMMARY, RunFolder
from renshu.pipeline.stand import Saved
from renshu.pipeline.watch import Watcher
from renshu.train.checkpoint import latest, recover
from renshu.train.processes import ALONE, Processes, require_equal


def resume_run(
    path: str | Path,
    *,
    force: bool = False,
    watcher: Watcher | None = None,
    processes: Processes = ALONE,
) -> Path:
    """Go on with a run that was broken off, to its end; returns its folder.

    On a CPU, with tools of this process, it ends as if it had never been broken off, bit for bit. force: also
    if the environment, data, template, settings or versions have changed since. processes: those that go on
    with it together; as many as before, or not. Raises ConfigError if something has changed, if the run is
    complete or still going on, or if there is no checkpoint.
    """
    began = time.perf_counter()
    watcher = watcher or Watcher()
    run, prepared, saved = reopen_run(path, prepare, force=force, watcher=watcher, processes=processes)
    run_course(prepared, run, watcher, began, saved, processes)
    return run.path


def reopen_run(
    path: str | Path,
    prepare: Callable[..., Prepared],
    *,
    force: bool,
    watcher: Watcher,
    processes: Processes = ALONE,
) -> tuple[RunFolder, Prepared, Saved]:
    """The run of a folder with all it needs, and its last checkpoint. Raises as `resume_run` does."""
    run = RunFolder(path)
    processes.led(lambda: _hold(run))
    try:
        saved = _last(run, watcher)
        record = run.provenance
        as_many = record.get("processes", 1) == processes.size
        if as_many:
            torch.set_num_threads(int(record["threads"]))  # sums depend on it
        recipe = run.recipe
        require_divisible(recipe, processes.size)
        prepared = prepare(recipe, name=str(record["recipe"]), base=str(record["base"]))
        now = provenance(recipe, prepared.name, prepared.agent, prepared.base)
        changed = differences(record, now)
        require_equal(processes, without_circumstances(now))
        if changed and not force:
            raise ConfigError(
                f"{run.path}: something has changed since the run began ({'; '.join(changed)}): put it back, "
                "or go on with --force, and the run is no longer one experiment"
            )
        processes.led(lambda: (run.path / FAILURE).unlink(missing_ok=True))
    except BaseException:
        run.close()
        raise
    watcher.noted(f"{run.path} goes on {saved.place}")
    if record["machine"] != now["machine"]:
        watcher.noted(
            f"it began on another machine ({record['machine']}): sums may differ in their last bits"
        )
    if not as_many:
        before = record.get("processes", 1)
        watcher.noted(f"it began with processes: {before}; sums may differ in their last bits")
    if changed:
        processes.led(lambda: run.append_lines("findings.jsonl", [_finding(saved, changed)]))
    return run, prepared, saved


def _hold(run: RunFolder) -> None:
    run.hold()
    if (run.path / SUMMARY).is_file():
        run.close()
        raise ConfigError(f"{run.path} is complete: there is nothing to resume")
    recover(run.path / "checkpoints")


def _last(run: RunFolder, watcher: Watcher) -> Saved:
    """The latest checkpoint that is whole. Raises ConfigError if there is none."""
    found = latest(run.path / "checkpoints")
    skipped = "".join(f"; checkpoint {skipped}" for skipped in found.skipped)
    if found.path is None:
        raise ConfigError(
            f"{run.path} has no checkpoint to go on from{skipped}: train again with --overwrite"
        )
    if skipped:
        watcher.noted(f"going back to {found.path.name}{skipped}")
    return Saved.read(found.path)


def _finding(saved: Saved, changed: list[str]) -> dict[str, Any]:
    """Of step 0 and no stage, so that it stays whatever is resumed later."""
    text = f"resumed {saved.place} although something had changed: {'; '.join(changed)}"
    return {"stage": "", "step": 0, "name": "resumed", "text": text}
