"""`renshu train RECIPE [key=value …]`."""

from __future__ import annotations

from typing import Annotated

import typer

from renshu.cli.together import PROCESSES, must_start, start


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
    processes: Annotated[int | None, PROCESSES] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end.")] = False,
) -> None:
    """Play a recipe's stages, measure every arm on held-out tasks, write the run folder and its report."""

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher, tell_result
    from renshu.pipeline.preflight import require_divisible
    from renshu.pipeline.recipe import find_recipe, read_recipe, recipe_name
    from renshu.pipeline.train import out_folder, train_recipe
    from renshu.train.joining import joined
    from renshu.train.progress import Terminal

    quiet()
    settings = read_recipe(recipe, overrides or (), preset=preset)
    path = find_recipe(recipe)
    name = recipe_name(path)
    if must_start(processes):
        require_divisible(settings, processes or 1)
        options = [
            *(["--preset", preset] if preset else []),
            *["--overwrite"] * overwrite,
            *["--json"] * as_json,
        ]
        arguments = ["train", *options, "--", recipe, *(overrides or ())]
        raise typer.Exit(start(arguments, processes or 1, out_folder(settings, name)))
    with joined(settings.parallel.kind, settings.model.device) as together:
        run = train_recipe(
            settings,
            name=name,
            base=path.parent,
            overwrite=overwrite,
            watcher=TerminalWatcher(Terminal()) if together.leads else None,
            processes=together,
        )
    if together.leads:
        tell_result(run, as_json=as_json)
