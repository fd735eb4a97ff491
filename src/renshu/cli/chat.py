"""`renshu chat RUN|MODEL`."""

from __future__ import annotations

from typing import Annotated

import typer

from renshu.cli.common import finite


def chat(
    target: Annotated[str, typer.Argument(help="A run folder, or a model: a folder, embedded, a hub name.")],
    env: Annotated[
        str | None, typer.Option(help="Whose tools the model may call; default: the run's.")
    ] = None,
    task: Annotated[int, typer.Option(min=0, help="Number of the test task that the tools work on.")] = 0,
    message: Annotated[list[str] | None, typer.Option(help="Say this (may be repeated) and end.")] = None,
    temperature: Annotated[float, typer.Option(min=0.0, callback=finite, help="0 is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of one reply.")] = 512,
) -> None:
    """Talk with a model; it calls its environment's tools. An empty line ends the conversation."""
    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.cli.transcript import show
    from renshu.engines import Sampling
    from renshu.envs import Environment, Interaction
    from renshu.pipeline.agent import build_agent
    from renshu.pipeline.environments import tasks_from
    from renshu.pipeline.finished import environment_for, find_target
    from renshu.pipeline.talk import Bare, talk
    from renshu.types import Stop, Task

    quiet()
    console = Console()
    found = find_target(target)
    agent = build_agent(found.model, found.base, found.weights)
    if found.note:
        console.print(found.note, style="dim")
    environment: type[Environment] = Bare
    problem = Task("chat/0")
    if env is not None or (found.recipe is not None and found.recipe.env is not None):
        environment = environment_for(found, env)
        (problem,) = tasks_from(environment, "test", task, 1)
        request = Interaction(environment(), problem).messages[-1].content
        console.print(f"The task: {request}", style="dim", highlight=False, markup=False)
    said = iter(message or ())

    def ask() -> str | None:
        if message is not None:
            return next(said, None)
        try:
            return input("you: ") or None
        except EOFError:
            return None

    sampling = Sampling(max_tokens=max_tokens, temperature=temperature, stop_ids=agent.chat.stop_ids)
    stop = talk(agent, environment, problem, sampling, ask, lambda said: show(console, [said]))
    if stop is Stop.LENGTH:
        console.print(f"The reply was cut after {max_tokens} tokens.", style="dim")
