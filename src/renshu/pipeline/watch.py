"""What a run tells while it goes on, to whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from renshu.pipeline.recipe import Stage
from renshu.train import Snapshot


class Watcher:
    """Base class: every method may be left as it is. A watcher shows things; it never changes the run."""

    def noted(self, text: str) -> None:
        """Something to know before training begins: data that was left out."""

    def stage_begins(self, stage: Stage, steps: int) -> None:
        """A stage of so many steps begins."""

    def stage_step(self, stage: Stage, snapshot: Snapshot, dev_success: float | None) -> None:
        """A step is done; its metrics are its line of `metrics.jsonl`. dev_success: if there was a look."""

    def stage_ends(self, stage: Stage, reason: str | None) -> None:
        """A stage is over; reason: why before its last step, if so."""

    def evaluating(self, arm: str, done: int, tasks: int) -> None:
        """An evaluation goes on."""

    def evaluated(self, arm: Mapping[str, Any]) -> None:
        """An arm is measured: as in `summary.json`."""

    def broken_off(self) -> None:
        """The run ends before its time: whatever is open on the screen should be closed."""
