"""What the loop shows to those who watch it: metrics, findings, and a way to ask for the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Something the loop noticed: `name` for machines, `text` for people, with what to do."""

    name: str
    text: str


@dataclass(frozen=True)
class Snapshot:
    """The state after a step. step: steps done, of `steps`. batch: what the step was trained on."""

    step: int
    steps: int
    metrics: Mapping[str, float]
    findings: tuple[Finding, ...]
    batch: Any


# Returns None, or the reason why training should end after this step.
Observer = Callable[[Snapshot], str | None]
