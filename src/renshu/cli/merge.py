"""`renshu merge RUN --out FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def merge(
    run: Annotated[Path, typer.Argument(help="A run trained with an adapter.")],
    out: Annotated[Path, typer.Option(help="The new model folder.")],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"], typer.Option(help="Type of the weights written.")
    ] = "float32",
) -> None:
    """Write a run's adapter into its base model: a folder that any tool loads, compared before and after."""
    from renshu.cli.common import quiet
    from renshu.handover.merge import merge_run

    quiet()
    print(f"{merge_run(run, out, dtype=dtype)}: a whole model, its log-probs unchanged")
