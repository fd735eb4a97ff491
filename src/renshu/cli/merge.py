"""`renshu merge RUN --to hf|gguf|ollama --out FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def merge(
    run: Annotated[Path, typer.Argument(help="A run trained with an adapter.")],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    to: Annotated[
        Literal["hf", "gguf", "ollama"],
        typer.Option(help="A folder for transformers, a file for llama.cpp, or that with a Modelfile."),
    ] = "hf",
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "q8_0"], typer.Option(help="Type of the weights written.")
    ] = "float32",
) -> None:
    """Write a run's adapter into its base model, compared before and after; for programs without adapters."""
    from renshu.cli.common import quiet
    from renshu.handover.merge import merge_run

    quiet()
    written = merge_run(run, out, to=to, dtype=dtype)
    print(f"{written.folder}: a whole model; log-probs as trained, to {written.gap:.1g} nats")
    if written.note:
        print(f"Note: {written.note}.")
