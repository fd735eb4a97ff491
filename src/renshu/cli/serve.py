"""`renshu serve RUN|MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def serve(
    target: Annotated[str, typer.Argument(help="A run folder, or a model: a folder, embedded, a hub name.")],
    port: Annotated[int, typer.Option(min=1, max=65535, help="Of this machine.")] = 8000,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    expose: Annotated[
        bool, typer.Option("--expose", help="Allow a host that other machines can reach.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(help="File of requests; default: requests.jsonl in the run, or here.")
    ] = None,
    no_log: Annotated[bool, typer.Option("--no-log", help="Keep no requests.")] = False,
    api_key_env: Annotated[
        str | None, typer.Option(help="Variable that holds the key clients must send.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="Where a request names none; 0 is greedy.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one answer, where a request names none.")] = 512,
    at_once: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 64,
) -> None:
    """Serve a model to clients of OpenAI's chat completions, with the template it was trained with."""
    import os

    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.errors import ConfigError
    from renshu.pipeline.agent import build_agent
    from renshu.pipeline.finished import find_target
    from renshu.serve.app import is_loopback
    from renshu.serve.request import Defaults
    from renshu.serve.run import run, service_of

    quiet()
    console = Console(stderr=True)
    local = is_loopback(host)
    if not local and not expose:
        raise ConfigError(
            f"--host {host} lets other machines reach this server: add --expose if you want that"
        )
    if no_log and log is not None:
        raise ConfigError("--log and --no-log exclude each other: leave one out")
    key = os.environ.get(api_key_env) if api_key_env is not None else None
    if api_key_env is not None and not key:
        raise ConfigError(f"--api-key-env: the variable {api_key_env} is not set, or empty")
    found = find_target(target)
    agent = build_agent(found.model, found.base, found.weights)
    default_log = Path(target) / "requests.jsonl" if found.recipe is not None else Path("requests.jsonl")
    name = Path(target).resolve().name if Path(target).exists() else target
    service = service_of(
        agent.chat,
        agent.engine,
        name,
        defaults=Defaults(max_tokens, temperature),
        log=None if no_log else log or default_log,
        key=key,
        at_once=at_once,
        local=local,
    )
    if found.note:
        console.print(found.note, style="dim")
    if not local:
        unguarded = "" if key else ", and asks for no key (--api-key-env)"
        console.print(f"warning: {host} can be reached by other machines{unguarded}", style="yellow")
    shown = f"[{host}]" if ":" in host else host
    console.print(f"serving {name} at http://{shown}:{port}/v1", markup=False, highlight=False)
    if service.log is not None:
        console.print(f"requests are kept in {service.log.path}", style="dim", markup=False, highlight=False)
    run(service, host, port)
