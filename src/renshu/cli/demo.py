"""`renshu demo`: an agent that fails, minutes of practice, the same task solved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from renshu.types import Trajectory


def demo(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="key=value, e.g. stages.1.grpo.steps=20")
    ] = None,
    hack: Annotated[bool, typer.Option("--hack", help="Train on a bad reward: watch success fall.")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another run.")] = 0,
) -> None:
    """Train the embedded agent on two CPU cores in minutes, and prove the gain on held-out tasks."""
    from rich.console import Console

    from renshu.cli.common import quiet
    from renshu.cli.live import DemoWatcher
    from renshu.pipeline.demo import attempt, demo_recipe, failed_episode
    from renshu.pipeline.train import play, prepare

    quiet()
    console = Console()
    name, recipe = demo_recipe(hack=hack, seed=seed, overrides=overrides or ())
    prepared = prepare(recipe, name=name)
    before = failed_episode(prepared)
    console.rule("before")
    _show(console, before)
    console.rule("training")
    if hack:
        console.print(
            "The reward of this run is bad on purpose: 0.1 for every tool call, whatever comes of it."
        )
    run = play(prepared, overwrite=True, watcher=DemoWatcher(console))
    console.rule("the same task afterwards")
    _show(console, attempt(prepared, [before.task])[0])
    console.rule("verdict")
    _conclude(console, run, hack=hack)


def _show(console: Console, episode: Trajectory) -> None:
    from renshu.cli.transcript import show
    from renshu.pipeline.demo import solved

    show(console, episode.messages)
    console.print(
        f"{'solved' if solved(episode) else 'not solved'} ({episode.stop})", style="bold", highlight=False
    )


def _conclude(console: Console, run: Path, *, hack: bool) -> None:
    import json

    from renshu.report import tokens_sentence, verdict

    summary = json.loads((run / "summary.json").read_text("utf-8"))
    if hack:
        console.print(_hacked(summary), highlight=False, soft_wrap=True)
    lines = [verdict(summary), tokens_sentence(summary), f"report: {run / 'report.html'}", "", "next:"]
    other = "renshu demo" if hack else "renshu demo --hack"
    lines += [f"  renshu chat {run}", "  renshu train repairs", f"  {other}"]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _hacked(summary: dict[str, Any]) -> str:
    """What practice on the bad reward did; the verdict is about the checkpoint that success chose."""
    (result,) = summary["evaluation"].values()
    before, after = (
        next(arm for arm in result["arms"] if arm["arm"] == name) for name in ("warm-up", "practice")
    )
    if None in (before["success"], after["success"]):
        return "Too few episodes could be scored to say what the bad reward did."
    return (
        f"Practice moved reward from {before['reward']:.2f} to {after['reward']:.2f} and success from "
        f"{before['success']:.0%} to {after['success']:.0%}. What is kept was chosen by success."
    )
