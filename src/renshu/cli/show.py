"""Watching a run in a terminal: a bar a stage, a line an arm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from renshu.pipeline.recipe import Stage
from renshu.pipeline.watch import Watcher
from renshu.train import ProgressBar, Snapshot


class TerminalWatcher(Watcher):
    """Shows progress on standard error, so that standard output stays for results."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: ProgressBar | None = None
        self.status = console.status("")

    def noted(self, text: str) -> None:
        self.console.print(f"  ! {text}", highlight=False, markup=False)

    def stage_begins(self, stage: Stage, steps: int) -> None:
        self.bar = ProgressBar(stage.name, steps, console=self.console)
        self.bar.__enter__()

    def stage_step(self, stage: Stage, snapshot: Snapshot, dev_success: float | None) -> None:
        assert self.bar is not None
        self.bar(snapshot)
        if dev_success is not None:
            self.console.print(f"  step {snapshot.step}: success on dev {dev_success:.0%}", highlight=False)
        for finding in snapshot.findings:
            self.noted(finding.text)

    def stage_ends(self, stage: Stage, reason: str | None) -> None:
        assert self.bar is not None
        self.bar.__exit__(None, None, None)
        if reason:
            self.console.print(f"  {stage.name} ended: {reason}", highlight=False)

    def broken_off(self) -> None:
        self.status.stop()
        if self.bar is not None:
            self.bar.__exit__(None, None, None)

    def evaluating(self, arm: str, done: int, tasks: int) -> None:
        self.status.start()
        self.status.update(f"measuring {arm}: {done} of {tasks} tasks")

    def evaluated(self, arm: Mapping[str, Any]) -> None:
        self.status.stop()
        self.console.print(describe_arm(arm), highlight=False)


class ProgressWatcher(TerminalWatcher):
    """How far a measurement is; what it found is told by whoever asked for it."""

    def evaluated(self, arm: Mapping[str, Any]) -> None:
        self.status.stop()


def tell_result(run: Path, *, as_json: bool) -> None:
    """Print how a run ended: its verdict, or for machines its summary."""
    from renshu.report import tokens_sentence, verdict

    summary = json.loads((run / "summary.json").read_text("utf-8"))
    if as_json:
        print(json.dumps(summary))
        return
    print(verdict(summary))
    print(tokens_sentence(summary))
    print(f"report: {run / 'report.html'}")


def describe_arm(arm: Mapping[str, Any]) -> str:
    """`warm-up: 41% of 300 tasks solved (95 % interval 36% to 47%)`."""
    unscored = f", {arm['unscored']} unscored" if arm["unscored"] else ""
    if arm["success"] is None:
        return f"{arm['arm']}: no task could be scored{unscored}"
    interval = f"95 % interval {arm['low']:.0%} to {arm['high']:.0%}"
    return f"{arm['arm']}: {arm['success']:.0%} of {arm['n']} tasks solved ({interval}{unscored})"
