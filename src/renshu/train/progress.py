"""A progress bar with time left and the latest numbers; plain lines where there is no terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from renshu.train.observe import Snapshot

LINES = 10  # printed in all where there is no terminal


class Terminal(Console):
    """Standard error of long work, which goes on where nobody reads any longer (`2>&1 | head`)."""

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet)

    def on_broken_pipe(self) -> None:
        """Rich would end the program here, and hours of work with it."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stderr.fileno())  # for whoever else writes there
        os.close(nowhere)


class ProgressBar:
    """An observer, open while a stage trains. shown: the metrics beside the bar, where they are known."""

    def __init__(
        self,
        name: str,
        steps: int,
        *,
        shown: Sequence[str] = ("loss", "reward", "success"),
        console: Console | None = None,
    ) -> None:
        self.name, self.steps, self.shown = name, steps, shown
        self.console = console or Terminal()
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[numbers]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task(name, total=steps, numbers="")

    def __call__(self, snapshot: Snapshot) -> None:
        numbers = describe(snapshot.metrics, self.shown)
        self.progress.update(self.task, completed=snapshot.step, numbers=numbers)
        every = max(1, self.steps // LINES)
        if not self.console.is_terminal and (snapshot.step % every == 0 or snapshot.step == self.steps):
            self.console.print(f"{self.name}  {snapshot.step}/{self.steps}  {numbers}", highlight=False)

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()


def describe(metrics: Mapping[str, float], shown: Sequence[str]) -> str:
    """`loss 0.412  reward 0.75`: the numbers of `shown` that are known."""
    known = [name for name in shown if name in metrics and metrics[name] == metrics[name]]
    return "  ".join(f"{name} {metrics[name]:.3g}" for name in known)
