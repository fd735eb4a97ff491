"""`renshu train RECIPE [key=value …]`."""

from __future__ import annotations

from typing import Annotated

import typer


def train(
    recipe: Annotated[
        str, typer.Argument(help="A file, or a built-in name: flights, repairs, flights-dpo, …")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, e.g. stages.0.sft.epochs=3")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="A preset of the recipe, e.g. gpu.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run of this name.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end.")] = False,
) -> None:
    """Play a recipe's stages, measure every arm on held-out tasks, write the run folder and its report."""
    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher, tell_result
    from renshu.pipeline.recipe import find_recipe, read_recipe, recipe_name
    from renshu.pipeline.train import train_recipe

    quiet()
    settings = read_recipe(recipe, overrides or (), preset=preset)
    path = find_recipe(recipe)
    watcher = TerminalWatcher(Console(stderr=True))
    run = train_recipe(
        settings, name=recipe_name(path), base=path.parent, overwrite=overwrite, watcher=watcher
    )
    tell_result(run, as_json=as_json)
