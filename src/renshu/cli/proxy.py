"""`renshu proxy RECIPE [key=value …]`."""

from __future__ import annotations

from typing import Annotated

import typer

from renshu.cli.common import finite


def proxy(
    recipe: Annotated[str, typer.Argument(help="A recipe without env: its agents run elsewhere.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, e.g. stages.0.grpo.steps=30")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of this machine.")] = 8700,
    patience: Annotated[
        float,
        typer.Option(min=1.0, callback=finite, help="Seconds until a silent episode counts as abandoned."),
    ] = 600.0,
    preset: Annotated[str | None, typer.Option(help="A preset of the recipe, e.g. gpu.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier run of this name.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json at the end.")] = False,
) -> None:
    """Train agents of any framework through an OpenAI endpoint that records what they sample."""

    from renshu.cli.common import quiet
    from renshu.cli.show import TerminalWatcher, tell_result
    from renshu.pipeline.recipe import find_recipe, read_recipe, recipe_name
    from renshu.proxy.start import run_proxy
    from renshu.train.progress import Terminal

    quiet()
    settings = read_recipe(recipe, overrides or (), preset=preset)
    path = find_recipe(recipe)
    run = run_proxy(
        settings,
        name=recipe_name(path),
        base=path.parent,
        port=port,
        overwrite=overwrite,
        patience=patience,
        watcher=TerminalWatcher(Terminal()),
    )
    tell_result(run, as_json=as_json)
