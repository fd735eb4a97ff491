"""`renshu runs [DIR]`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

WIDTH = 1000  # columns where there is no terminal: a line a run, whatever reads it

if TYPE_CHECKING:
    from renshu.pipeline.runs import RunLine


def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = Path("runs"),
    env: Annotated[str | None, typer.Option(help="Only runs whose environment has this in its name.")] = None,
    model: Annotated[str | None, typer.Option(help="Only runs whose model has this in its name.")] = None,
    recipe: Annotated[str | None, typer.Option(help="Only runs whose recipe has this in its name.")] = None,
    state: Annotated[str | None, typer.Option(help="complete, running, 'broken off' or failed.")] = None,
    success: Annotated[
        str | None, typer.Option(help="Only runs with such success at the end, e.g. '>0.9'.")
    ] = None,
    sort: Annotated[str, typer.Option(help="date, name or success; the newest or best come last.")] = "date",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """List runs: what was trained, how far it came, success before and after."""
    from renshu.pipeline.runs import chosen, list_runs

    listing = list_runs(folder)
    found = chosen(listing.runs, env=env, model=model, recipe=recipe, state=state, success=success, sort=sort)
    for sentence in listing.damaged:
        print(sentence, file=sys.stderr)
    if as_json:
        print(json.dumps([asdict(run) for run in found], ensure_ascii=False))
        return
    _table(found)


def _table(found: list[RunLine]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "recipe", "env", "model", "seed", "state", "success", "started", box=None)
    for run in found:
        state = f"{run.state} {run.detail}".strip()
        cells = [run.path, run.recipe or "–", run.env, run.model, str(run.seed), state, _gain(run)]
        table.add_row(*cells, run.started[:16].replace("T", " "))
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table if found else "no runs")


def _gain(run: RunLine) -> str:
    """`0% → 66% (61 to 70)`."""
    if run.success is None:
        return "–"
    before = "" if run.base is None else f"{run.base:.0%} → "
    return f"{before}{run.success:.0%} ({100 * (run.low or 0):.0f} to {100 * (run.high or 0):.0f})"
