"""`--processes N`: verbs that several processes do together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from renshu.errors import ConfigError, TrainingError

PROCESSES: Any = typer.Option(
    "--processes", min=1, help="Processes that train together on this machine, on GPUs one each."
)


def must_start(processes: int | None) -> bool:
    """Whether this process has to start the others; not, if a launcher has. Raises ConfigError."""
    from renshu.train.joining import launched

    started = launched()
    if started > 1 and processes not in (None, started):
        raise ConfigError(
            f"--processes {processes}, but a launcher has started {started} already: leave the option out"
        )
    return started == 1 and processes is not None and processes > 1


def start(arguments: Sequence[str], processes: int, run: Path) -> int:
    """Do a verb in so many processes; returns the exit code. run: the folder that they write."""
    from renshu.pipeline.course import what_is_kept
    from renshu.pipeline.run_folder import RunFolder
    from renshu.train.launch import launch, renshu

    try:
        return launch(renshu(*arguments), processes)
    except TrainingError as error:
        error.add_note(what_is_kept(RunFolder(run), f"renshu resume {run} --processes {processes}"))
        raise
