"""`renshu report`: write a run's report again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(run: Annotated[Path, typer.Argument(help="The folder of a run, finished or not.")]) -> None:
    """Write a run's report.html again and print its path."""
    from renshu.report import build_report

    print(build_report(run))
