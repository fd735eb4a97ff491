"""`renshu new NAME`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def new(
    name: Annotated[str, typer.Argument(help="Of the environment; a Python name such as order_desk.")],
    language: Annotated[str, typer.Option(help="Of prompts and tool docs: en or zh.")] = "en",
    dir: Annotated[Path, typer.Option("--dir", help="Where the new folder goes.")] = Path(),
) -> None:
    """Write a folder with an environment, recipe, cases and test that run as they are."""
    from renshu.pipeline.new import write_new

    folder = write_new(name, dir, language)
    for path in sorted(folder.iterdir()):
        print(path)
    print("Next:")
    for verb in ("play", "check", "train"):
        print(f"  renshu {verb} {folder / 'recipe.yaml'}")
