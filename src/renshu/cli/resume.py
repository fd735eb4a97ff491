"""`renshu resume RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def resume(
    run: Annotated[Path, typer.Argument(help="A run folder that was broken off, e.g. runs/flights-0.")],
    force: Annotated[
        bool, typer.Option("--force", help="Also if environment, data, template or versions have changed.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end.")] = False,
) -> None:
    """Go on with a run that was interrupted, killed or failed, from its last checkpoint to its end."""
    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher, tell_result
    from renshu.pipeline.resume import resume_run

    quiet()
    tell_result(resume_run(run, force=force, watcher=TerminalWatcher(Console(stderr=True))), as_json=as_json)
