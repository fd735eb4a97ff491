"""`renshu serve RUN|MODEL`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from renshu.cli.common import finite

if TYPE_CHECKING:
    from rich.console import Console

    from renshu.serve.app import Service


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
        float, typer.Option(min=0.0, callback=finite, help="Where a request names none; 0 is greedy.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of one answer, where a request names none.")] = 512,
    at_once: Annotated[int, typer.Option(min=1, help="Requests that decode together.")] = 64,
) -> None:
    """Serve a model to clients of OpenAI's chat completions, with the template it was trained with."""
    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.pipeline.agent import build_agent
    from renshu.pipeline.finished import find_target
    from renshu.places import require_writable
    from renshu.serve.http import is_loopback
    from renshu.serve.request import Defaults
    from renshu.serve.run import run, service_of

    quiet()
    console = Console(stderr=True, markup=False, highlight=False)
    local = is_loopback(host)
    _refuse(host, reachable=not local and not expose, log_twice=no_log and log is not None)
    key = _key(api_key_env)
    found = find_target(target)
    default_log = Path(target) / "requests.jsonl" if found.recipe is not None else Path("requests.jsonl")
    kept_in = None if no_log else log or default_log
    if kept_in is not None:
        require_writable(kept_in, "--log")
    agent = build_agent(found.model, found.base, found.weights)
    service = service_of(
        agent.chat,
        agent.engine,
        Path(target).resolve().name if Path(target).exists() else target,
        defaults=Defaults(max_tokens, temperature),
        log=kept_in,
        key=key,
        at_once=at_once,
        local=local,
    )
    if found.note:
        console.print(found.note, style="dim")
    _tell(console, service, host, port)
    run(service, host, port)


def _refuse(host: str, *, reachable: bool, log_twice: bool) -> None:
    from renshu.errors import ConfigError

    if reachable:
        raise ConfigError(
            f"--host {host} lets other machines reach this server: add --expose if you want that"
        )
    if log_twice:
        raise ConfigError("--log and --no-log exclude each other: leave one out")


def _key(variable: str | None) -> str | None:
    """What clients must send. Raises ConfigError if the variable that should hold it is empty."""
    import os

    from renshu.errors import ConfigError

    key = os.environ.get(variable) if variable is not None else None
    if variable is not None and not key:
        raise ConfigError(f"--api-key-env: the variable {variable} is not set, or empty")
    return key


def _tell(console: Console, service: Service, host: str, port: int) -> None:
    if not service.local:
        unguarded = "" if service.key else ", and asks for no key (--api-key-env)"
        console.print(f"warning: {host} can be reached by other machines{unguarded}", style="yellow")
    shown = f"[{host}]" if ":" in host else host
    console.print(f"serving {service.name} at http://{shown}:{port}/v1")
    if service.log is not None:
        console.print(f"requests are kept in {service.log.path}", style="dim")
