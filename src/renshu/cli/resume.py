"""`renshu resume RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from renshu.cli.together import PROCESSES, must_start, start


def resume(
    run: Annotated[Path, typer.Argument(help="A run folder that was broken off, e.g. runs/flights-0.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also if environment, data, template or versions have changed.")
    ] = False,
    processes: Annotated[int | None, PROCESSES] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end.")] = False,
) -> None:
    """Go on with a run that was interrupted, killed or failed, from its last checkpoint to its end."""

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher, tell_result
    from renshu.pipeline.resume import resume_run
    from renshu.pipeline.run_folder import RunFolder
    from renshu.train.joining import joined
    from renshu.train.progress import Terminal

    quiet()
    if must_start(processes):
        arguments = ["resume", *["--force"] * force, *["--json"] * as_json, "--", str(run)]
        raise typer.Exit(start(arguments, processes or 1, run))
    recipe = RunFolder(run).require().recipe
    with joined(recipe.parallel.kind, recipe.model.device) as together:
        watcher = TerminalWatcher(Terminal()) if together.leads else None
        path = resume_run(run, force=force, watcher=watcher, processes=together)
    if together.leads:
        tell_result(path, as_json=as_json)
