"""`renshu reward`: reward models from pairs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(help="Train reward models.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """A group, although it has one verb."""


@app.command("train")
def train(
    pairs: Annotated[
        Path, typer.Argument(help="JSON lines with prompt, chosen, rejected: texts, or lists of messages.")
    ],
    out: Annotated[Path, typer.Option(help="The new folder.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="key=value, e.g. epochs=2 learning_rate=2e-5 centre=0.01")
    ] = None,
    model: Annotated[
        str, typer.Option(help="The model to begin with: a folder or name, as in a recipe.")
    ] = "embedded",
    seed: Annotated[int, typer.Option(min=0, help="Of the head, the held-out pairs and the order.")] = 0,
    template: Annotated[
        Literal["own", "fallback"], typer.Option(help="Chat template: the model's own, or Renshu's.")
    ] = "own",
    as_json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Train a reward model from pairs of answers, and measure it on held-out prompts."""
    from contextlib import ExitStack

    from renshu.algorithms.reward import RewardConfig
    from renshu.cli.common import quiet
    from renshu.config import apply_overrides
    from renshu.models import ModelSettings
    from renshu.pipeline.reward_training import train_reward_model
    from renshu.train import ProgressBar
    from renshu.train.progress import Terminal

    quiet()
    config = RewardConfig.from_dict(apply_overrides({}, settings or []), "settings")
    with ExitStack() as stack:

        def observe(steps: int) -> ProgressBar:
            bar = ProgressBar("reward", steps, shown=("loss", "accuracy"), console=Terminal())
            return stack.enter_context(bar)

        trained = train_reward_model(
            pairs, ModelSettings(name=model, template=template), config, out, seed=seed, observe=observe
        )
    share, low, high = trained.accuracy
    if as_json:
        held = {"pairs": trained.held_out, "right": trained.right, "before": trained.before}
        interval = {"accuracy": share, "low": low, "high": high} if trained.held_out else {}
        record = {"pairs": trained.pairs, "held_out": held | interval, "set_aside": trained.set_aside}
        print(json.dumps({"folder": str(out), **record}))
        return
    for reason, count in trained.set_aside.items():
        print(f"set aside: {count} ({reason})")
    if trained.held_out:
        print(
            f"{share:.1%} of {trained.held_out} held-out pairs in the right order "
            f"(95 % interval {low:.1%} to {high:.1%}); "
            f"{trained.before / trained.held_out:.1%} before training on {trained.pairs}"
        )
    print(f"{out}: use it in an environment with reward_model({str(out)!r})")
