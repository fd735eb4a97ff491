"""`renshu play ENV`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from renshu.cli.common import finite

if TYPE_CHECKING:
    from rich.console import Console

    from renshu.envs import Environment
    from renshu.pipeline.play import Collected
    from renshu.tools import ToolSpec
    from renshu.types import Task, Trajectory

HELP = "Type a call (`help` shows how), `think …` for a thought, anything else as the answer; Ctrl-D leaves."


def play(
    env: Annotated[
        str,
        typer.Argument(help="flights, repairs, file.py, file.py:Class, module:Class or a recipe (*.yaml)."),
    ],
    task: Annotated[int, typer.Option(min=0, help="Number of the first task.")] = 0,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "train",
    save: Annotated[
        Path | None, typer.Option(help="Append the episodes as demonstrations: a file for sft.data.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(help="Who acts: solve, hurried, a run, a model, or a log (*.jsonl); default: you."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Episodes, one a task; default: one, of a log all.")
    ] = None,
    only_success: Annotated[bool, typer.Option("--only-success", help="Save what solved its task.")] = False,
    temperature: Annotated[
        float, typer.Option(min=0.0, callback=finite, help="Of a model; 0 is greedy.")
    ] = 0.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a model in one episode.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Of a model's samples at a temperature.")] = 0,
) -> None:
    """Be the agent: see what it sees, call its tools, get the score; keep episodes as demonstrations."""
    from rich.console import Console

    from renshu.pipeline.environments import environment_of
    from renshu.pipeline.play import choose_tasks, save_rows
    from renshu.places import require_writable

    console = Console(highlight=False, soft_wrap=True)
    environment = environment_of(env)
    tasks = choose_tasks(environment, split, task, count or 1, to_save=save is not None)
    if save is not None:
        require_writable(save, "--save")
    if policy is None:
        for chosen in tasks:
            if not _by_hand(console, environment, chosen, save, only_success):
                return
        return
    collected = _collect(environment, policy, tasks, count, temperature, max_tokens, seed, only_success)
    _tell(console, policy, collected)
    if save is not None:
        save_rows(save, collected.rows)
        console.print(f"saved: {len(collected.rows)} to {save}", markup=False)


def _collect(
    environment: type[Environment],
    policy: str,
    tasks: Sequence[Task],
    count: int | None,
    temperature: float,
    max_tokens: int,
    seed: int,
    only_success: bool,
) -> Collected:
    from renshu.errors import ConfigError
    from renshu.pipeline.play import SCRIPTS, collect_from_log, collect_from_model, collect_from_script

    if policy in SCRIPTS:
        return collect_from_script(environment, policy, tasks, only_success=only_success)
    if policy.endswith(".jsonl"):
        if only_success:
            raise ConfigError("--only-success: a log does not say which task it solved; leave it out")
        return collect_from_log(environment, Path(policy), count)
    from renshu.cli.common import quiet

    quiet()
    return collect_from_model(
        environment,
        policy,
        tasks,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        only_success=only_success,
    )


def _tell(console: Console, policy: str, collected: Collected) -> None:
    outcomes = ", ".join(f"{collected.success[kind]} {kind}" for kind in ("solved", "failed", "unscored"))
    if collected.success:
        console.print(f"{policy}: {collected.success.total()} episodes: {outcomes}", markup=False)
    else:
        console.print(f"{policy}: {len(collected.rows)} dialogues fit the environment", markup=False)
    for reason, number in collected.left_out.most_common(10):
        console.print(f"left out: {number} ({reason})", markup=False)


def _by_hand(
    console: Console, environment: type[Environment], task: Task, save: Path | None, only_success: bool
) -> bool:
    """Play one task; False if the person left."""
    from renshu.cli.transcript import show
    from renshu.pipeline.play import Collected, play_by_hand, save_rows

    made = environment()
    specs = made.tools()
    console.print(f"task {task.id}", style="bold", markup=False)
    _show_tools(console, specs)
    console.print(HELP, style="dim")

    def ask() -> str | None:
        while (line := _line()) is not None:
            words = line.split()
            if not words or words[0] != "help":
                return line
            _show_tools(console, specs, words[1:] or None)
        return None

    trajectory = play_by_hand(
        made,
        task,
        ask,
        lambda message: show(console, [message]),
        lambda hint: console.print(hint, style="dim", markup=False),
    )
    if trajectory is None:
        console.print("\nleft before the end: no score, nothing saved", style="dim")
        return False
    _show_score(console, trajectory)
    if save is not None:
        collected = Collected()
        collected.add(trajectory, [spec.schema for spec in specs], only_success=only_success)
        save_rows(save, collected.rows)
        for reason in collected.left_out:
            console.print(f"not saved: {reason}", markup=False)
        if collected.rows:
            unsolved = (
                "" if collected.success["solved"] else ", though not solved: --only-success leaves such out"
            )
            console.print(f"saved to {save}{unsolved}", markup=False)
    return True


def _line() -> str | None:
    import sys

    try:
        line = input("you: ")
    except EOFError:
        return None
    if not sys.stdin.isatty():
        print(line)  # a pipe does not show what it says
    return line


def _show_tools(console: Console, specs: Sequence[ToolSpec], names: Sequence[str] | None = None) -> None:
    """How to call each tool, what for, and its parameters; of `names` the whole JSON schema."""
    import json

    from renshu.pipeline.typed import usage

    for spec in specs:
        if names is not None:
            if spec.name in names:
                console.print(json.dumps(spec.schema, indent=1, ensure_ascii=False), markup=False)
            continue
        console.print(f"  {usage(spec)}", style="magenta", markup=False)
        console.print(f"      {spec.description.splitlines()[0] if spec.description else ''}", markup=False)
        for name, schema in spec.schema["function"]["parameters"]["properties"].items():
            console.print(f"      {name}: {_describe(schema)}", style="dim", markup=False)


def _describe(schema: dict[str, object]) -> str:
    """`string, first and last name`; `one of name, queue`."""
    import json

    kind = schema.get("type", "any of several" if "anyOf" in schema else "")
    if isinstance(choices := schema.get("enum"), list):
        kind = "one of " + ", ".join(str(choice) for choice in choices)
    said = [str(kind), str(schema.get("description", ""))]
    if "default" in schema:
        said.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
    return ", ".join(part for part in said if part)


def _show_score(console: Console, trajectory: Trajectory) -> None:
    from renshu.types import Unscored

    score = trajectory.score
    console.print(f"ended: {trajectory.stop}", markup=False)
    if isinstance(score, Unscored):
        console.print(f"unscored: {score.reason}", markup=False)
        return
    for name, value in score.parts.items():
        console.print(f"  {name}: {'does not apply' if value is None else f'{value:g}'}", markup=False)
    console.print(f"reward: {score.value:g}", markup=False)
    told = {True: "yes", False: "no", None: "not defined"}[score.success]
    console.print(f"success: {told}", style="bold", markup=False)
