"""`renshu eval RUN|MODEL`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from renshu.cli.common import AtOnce, Keep, KeyVariables, refuse_without_api


def evaluate(
    target: Annotated[
        str, typer.Argument(help="A run folder, or a model: a folder, embedded, a hub name, api:MODEL@URL.")
    ],
    env: Annotated[
        str | None, typer.Option(help="flights, repairs, file.py:Class; default: the run's own.")
    ] = None,
    tasks: Annotated[
        int | None, typer.Option(min=1, help="Held-out tasks; default: as in the run, else 300.")
    ] = None,
    split: Annotated[str, typer.Option(help="test, dev or train.")] = "test",
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Sampled tokens of an episode; default: as in the run, else 512."),
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write one JSON line a task here.")] = None,
    api_key_env: KeyVariables = None,
    api_at_once: AtOnce = None,
    keep: Keep = None,
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Measure a model greedily on held-out tasks: success with its 95 % interval."""

    from renshu.cli.common import quiet
    from renshu.cli.show import ProgressWatcher, describe_arm
    from renshu.pipeline.endpoints import Access
    from renshu.pipeline.measure import measure
    from renshu.train.progress import Terminal

    quiet()
    refuse_without_api([target], api_key_env, api_at_once, keep)
    access = Access.of([target], api_key_env or (), api_at_once, keep)
    watcher = ProgressWatcher(Terminal(quiet=as_json))
    arm = measure(
        target,
        env=env,
        tasks=tasks,
        split=split,
        max_tokens=max_tokens,
        log=log,
        access=access,
        watcher=watcher,
    )
    print(json.dumps(arm) if as_json else describe_arm(arm))
