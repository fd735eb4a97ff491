"""The runs of a folder at a glance, read from their plain files."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renshu.errors import ConfigError, RenshuError
from renshu.jsonl import read_rows
from renshu.pipeline.course import place_of_latest
from renshu.pipeline.run_folder import FAILURE, PROVENANCE, SUMMARY, RunFolder, is_run

STATES = ("complete", "running", "broken off", "failed")
ORDERS = ("date", "name", "success")
_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
    "": operator.ge,
}


@dataclass(frozen=True)
class RunLine:
    """One run. recipe: None where an earlier version did not write it down. started: ISO 8601, in UTC.

    detail: where a run was broken off, and why it failed. base, success, low, high: shares of the test split
    before and after training with the 95 % interval, None where unknown.
    """

    path: str
    recipe: str | None
    env: str
    model: str
    seed: int
    state: str
    detail: str
    started: str
    base: float | None
    success: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Listing:
    """damaged: a sentence for each run that cannot be read."""

    runs: Sequence[RunLine]
    damaged: Sequence[str]


def list_runs(folder: str | Path) -> Listing:
    """The runs directly in `folder`, or the one that it is itself. Raises ConfigError if it is not there."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; name the one that holds your runs")
    places = [folder] if is_run(folder) else sorted(path for path in folder.iterdir() if is_run(path))
    runs, damaged = [], []
    for path in places:
        try:
            runs.append(_line(RunFolder(path)))
        except (RenshuError, KeyError, TypeError, ValueError, OSError) as error:
            damaged.append(f"{path} cannot be read: {error}")
    return Listing(runs, damaged)


def chosen(
    runs: Sequence[RunLine],
    *,
    env: str | None = None,
    model: str | None = None,
    recipe: str | None = None,
    state: str | None = None,
    success: str | None = None,
    sort: str = "date",
) -> list[RunLine]:
    """The runs that match all that is given, in order; the newest or best come last.

    env, model, recipe: a part of the name. success: `>0.9`, `<=0.5` or `0.9` (at least). Raises ConfigError.
    """
    if state is not None and state not in STATES:
        raise ConfigError(f"state {state!r}: expected one of {', '.join(STATES)}")
    if sort not in ORDERS:
        raise ConfigError(f"sort {sort!r}: expected one of {', '.join(ORDERS)}")
    enough = _bound(success) if success is not None else None
    wanted = {"env": env, "model": model, "recipe": recipe}
    found = [
        run
        for run in runs
        if all(part is None or part in (getattr(run, key) or "") for key, part in wanted.items())
        and (state is None or run.state == state)
        and (enough is None or (run.success is not None and enough(run.success)))
    ]
    keys: dict[str, Callable[[RunLine], Any]] = {
        "date": lambda run: run.started,
        "name": lambda run: run.path,
        "success": lambda run: -1.0 if run.success is None else run.success,
    }
    return sorted(found, key=keys[sort])


def _bound(text: str) -> Callable[[float], bool]:
    match = re.fullmatch(r"\s*(>=|<=|>|<|=|)\s*(\d*\.?\d+)\s*(%?)\s*", text)
    if match is None:
        raise ConfigError(f"success {text!r}: expected a bound such as '>0.9', '<=50%' or 0.9")
    compare, bound = _COMPARISONS[match[1]], float(match[2]) / (100 if match[3] else 1)
    return lambda value: bool(compare(value, bound))


def _line(run: RunFolder) -> RunLine:
    recipe = run.recipe
    record = run.provenance if (run.path / PROVENANCE).is_file() else {}
    complete = (run.path / SUMMARY).is_file()
    summary = run.read_json(SUMMARY) if complete else {}
    arms = {arm["arm"]: arm for result in summary.get("evaluation", {}).values() for arm in result["arms"]}
    base, final = arms.get("base", {}), arms.get("final", {})
    state, detail = ("complete", "") if complete else _unfinished(run)
    return RunLine(
        path=str(run.path),
        recipe=summary.get("recipe", record.get("recipe")),
        env=recipe.env or "",
        model=recipe.model.name,
        seed=recipe.seed,
        state=state,
        detail=detail,
        started=str(record.get("started", "")),
        base=base.get("success"),
        success=final.get("success"),
        low=final.get("low"),
        high=final.get("high"),
    )


def _unfinished(run: RunFolder) -> tuple[str, str]:
    """State and detail of a run without a summary."""
    if run.held:
        return "running", _last_step(run)
    place = place_of_latest(run) or "before its first checkpoint"
    if (run.path / FAILURE).is_file():
        return "failed", f"{place}: {run.read_json(FAILURE).get('error', '')}"
    return "broken off", place


def _last_step(run: RunFolder) -> str:
    """How far a run has come, by its last whole line of metrics."""
    rows = read_rows(run.path / "metrics.jsonl")
    if not rows:
        return "before its first step"
    last = rows[-1]
    return f"at step {last['step']} of {last['steps']} of {last['stage']}"
