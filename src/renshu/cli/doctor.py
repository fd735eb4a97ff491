"""`renshu doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def doctor(
    model: Annotated[str, typer.Option(help="Which model to load.")] = "embedded",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Look whether this machine can train: Python, device, memory, disk, model; says what to do."""
    import json
    from dataclasses import asdict

    from rich.console import Console
    from rich.text import Text

    from renshu.cli.common import AGAIN, quiet
    from renshu.errors import ConfigError

    try:
        from renshu.pipeline.doctor import diagnose
    except OSError as error:  # a library of torch's
        raise ConfigError(f"a package cannot be loaded: {error}; {AGAIN}") from error
    quiet()
    console = Console(highlight=False, soft_wrap=True)
    found = []
    for diagnosis in diagnose(model):
        found.append(diagnosis)
        if as_json:
            continue
        console.print(
            Text.assemble((f"{diagnosis.state:<5}", STYLES[diagnosis.state]), f"{diagnosis.name:<9} "), end=""
        )
        console.print(diagnosis.text, markup=False)
        if diagnosis.advice:
            console.print(f"{'':15}→ {diagnosis.advice}", markup=False)
    if as_json:
        print(json.dumps([asdict(diagnosis) for diagnosis in found], ensure_ascii=False))
    if any(diagnosis.state == "fail" for diagnosis in found):
        raise typer.Exit(1)
