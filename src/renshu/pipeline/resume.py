"""`renshu resume` as a function: a run that was broken off goes on where its last checkpoint stands."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from renshu.errors import ConfigError
from renshu.pipeline.course import run_course
from renshu.pipeline.prepare import Prepared, prepare
from renshu.pipeline.provenance import differences, provenance
from renshu.pipeline.run_folder import FAILURE, SUMMARY, RunFolder
from renshu.pipeline.stand import Saved
from renshu.pipeline.watch import Watcher
from renshu.train.checkpoint import latest, recover


def resume_run(path: str | Path, *, force: bool = False, watcher: Watcher | None = None) -> Path:
    """Go on with a run that was broken off, to its end; returns its folder.

    On a CPU, with tools of this process, it ends as if it had never been broken off, bit for bit. force: also
    if the environment, data, template, settings or versions have changed since. Raises ConfigError if they
    have, if the run is complete or still going on, or if there is no checkpoint.
    """
    began = time.perf_counter()
    watcher = watcher or Watcher()
    run, prepared, saved = reopen_run(path, prepare, force=force, watcher=watcher)
    run_course(prepared, run, watcher, began, saved)
    return run.path


def reopen_run(
    path: str | Path, prepare: Callable[..., Prepared], *, force: bool, watcher: Watcher
) -> tuple[RunFolder, Prepared, Saved]:
    """The run of a folder with all it needs, and its last checkpoint. Raises as `resume_run` does."""
    run = RunFolder.reopen(path)
    try:
        saved = _last(run, watcher)
        record = run.provenance
        torch.set_num_threads(int(record["threads"]))  # sums depend on it
        recipe = run.recipe
        prepared = prepare(recipe, name=str(record["recipe"]), base=str(record["base"]))
        now = provenance(recipe, prepared.name, prepared.agent, prepared.base)
        changed = differences(record, now)
        if changed and not force:
            raise ConfigError(
                f"{run.path}: something has changed since the run began ({'; '.join(changed)}): put it back, "
                "or go on with --force, and the run is no longer one experiment"
            )
        (run.path / FAILURE).unlink(missing_ok=True)
    except BaseException:
        run.close()
        raise
    watcher.noted(f"{run.path} goes on {saved.place}")
    if record["machine"] != now["machine"]:
        watcher.noted(
            f"it began on another machine ({record['machine']}): sums may differ in their last bits"
        )
    if changed:
        run.append_lines("findings.jsonl", [_finding(saved, changed)])
    return run, prepared, saved


def _last(run: RunFolder, watcher: Watcher) -> Saved:
    """The latest checkpoint that is whole. Raises ConfigError if the run needs none, or has none."""
    if (run.path / SUMMARY).is_file():
        raise ConfigError(f"{run.path} is complete: there is nothing to resume")
    folder = run.path / "checkpoints"
    recover(folder)
    found = latest(folder)
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
