"""Trackers by name: what a run tells goes to TensorBoard, Weights & Biases, MLflow, …, through accelerate.

A tracker shows a run and never changes it: one that fails becomes a finding, and the run goes on without it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from renshu.errors import ConfigError
from renshu.pipeline.recipe import Recipe, Stage
from renshu.pipeline.run_folder import PROVENANCE, RunFolder
from renshu.pipeline.watch import Watcher
from renshu.train import Snapshot

PROJECT = "renshu"  # where a tracker sorts runs into projects
FOLDER = "trackers"  # of the run folder: for trackers that write files
_USER = re.compile(r"//[^/@\s]+@")  # of an address: https://user:password@host


def require_trackers(names: Sequence[str]) -> None:
    """Raise ConfigError for a tracker that accelerate does not know, or whose package is not installed."""
    if not names:
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
    from accelerate.utils import LoggerType

    for name in names:
        if name not in LOGGER_TYPE_TO_CLASS:
            known = ", ".join(sorted(LOGGER_TYPE_TO_CLASS))
            raise ConfigError(f"trackers: {name!r} is unknown; known: {known}")
        needs_package = name in [kind.value for kind in LoggerType]
        if needs_package and name not in [str(kind) for kind in get_available_trackers()]:
            raise ConfigError(f"trackers: {name} is not installed: pip install {name}")


class Tracking(Watcher):
    """Passes all on to another watcher, and numbers to the trackers that the recipe names.

    done: steps of the stages that are over, where a run goes on. Steps are counted over all stages.
    """

    def __init__(self, watcher: Watcher, run: RunFolder, done: int = 0) -> None:
        self.watcher, self.run = watcher, run
        self.done, self.stage, self.step = done, "", 0
        self.trackers: dict[str, Any] = {}

    def start(self, recipe: Recipe) -> None:
        """Open the recipe's trackers and tell them its settings."""
        for name in recipe.trackers:
            self._try(name, partial(self._open, name, recipe))

    def _open(self, name: str, recipe: Recipe) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        kind = LOGGER_TYPE_TO_CLASS[name]
        project, settings = _settings(name, self.run)
        places = [str(self.run.path / FOLDER)] if kind.requires_logging_directory else []
        tracker = kind(project, *places, **settings)
        tracker.start()
        self.trackers[name] = tracker
        tracker.store_init_configuration(dict(flat(recipe.model_dump(mode="json", exclude_none=True))))

    def _try(self, name: str, action: Callable[[], None]) -> None:
        """Do something with a tracker; if it fails, note that and go on without it."""
        try:
            action()
        except Exception as error:  # of a foreign package, a network, an account
            self.trackers.pop(name, None)
            text = f"tracker {name} failed and is left out: {type(error).__name__}: {error}"
            finding = {"stage": self.stage, "step": self.step, "name": "tracker", "text": text}
            self.run.append_lines("findings.jsonl", [finding])
            self.watcher.noted(text)

    def _log(self, values: Mapping[str, Any]) -> None:
        """The numbers of `values`, at the steps made in all."""
        known = dict(_numbers(values))
        for name, tracker in list(self.trackers.items()):
            self._try(name, partial(tracker.log, known, step=self.done + self.step))

    def finish(self) -> None:
        """Close all trackers."""
        for name, tracker in list(self.trackers.items()):
            self._try(name, tracker.finish)
        self.trackers.clear()

    def noted(self, text: str) -> None:
        self.watcher.noted(text)

    def stage_begins(self, stage: Stage, steps: int) -> None:
        self.stage, self.step = stage.name, 0
        self.watcher.stage_begins(stage, steps)

    def stage_step(self, stage: Stage, snapshot: Snapshot, dev_success: float | None) -> None:
        self.step = snapshot.step
        self.watcher.stage_step(stage, snapshot, dev_success)
        counters = ("stage", "step", "steps")
        shown = {key: value for key, value in snapshot.metrics.items() if key not in counters}
        self._log({f"{stage.name}/{key}": value for key, value in shown.items()})

    def stage_ends(self, stage: Stage, reason: str | None) -> None:
        self.done, self.stage, self.step = self.done + self.step, "", 0
        self.watcher.stage_ends(stage, reason)

    def evaluating(self, arm: str, done: int, tasks: int) -> None:
        self.watcher.evaluating(arm, done, tasks)

    def evaluated(self, arm: Mapping[str, Any]) -> None:
        self.watcher.evaluated(arm)
        self._log({f"evaluation/{arm['arm']}/{key}": value for key, value in arm.items() if key != "arm"})

    def broken_off(self) -> None:
        self.watcher.broken_off()


def _settings(name: str, run: RunFolder) -> tuple[str, dict[str, Any]]:
    """Under which project or run name a tracker begins, and what else its package is told.

    A resumed run goes on under the same id where the tracker has ids.
    """
    title, folder = run.path.name, str(run.path)
    provenance = (run.path / PROVENANCE).read_bytes()
    identity = f"{title}-{hashlib.sha256(provenance).hexdigest()[:8]}"
    projects: dict[str, dict[str, Any]] = {
        "wandb": {"name": title, "dir": folder, "id": identity, "resume": "allow"},
        "trackio": {"name": identity, "resume": "allow"},
        "swanlab": {"experiment_name": title, "logdir": str(run.path / FOLDER)},
        "mlflow": {"run_name": title},
        "clearml": {"task_name": title},
        "comet_ml": {},
        "dvclive": {"dir": str(run.path / FOLDER / "dvclive"), "resume": True},
    }
    return (PROJECT, projects[name]) if name in projects else (title, {})


def flat(value: Any, key: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """The leaves of nested settings, by keys as a recipe's overrides have them: `stages.0.grpo.steps`.

    Addresses lose what names a user or a password.
    """
    if isinstance(value, Mapping | list | tuple):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, inner in items:
            yield from flat(inner, f"{key}.{name}" if key else str(name))
    elif isinstance(value, bool | int | float):
        yield key, value
    elif value is not None:
        yield key, _USER.sub("//", str(value))


def _numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """What a curve can show: finite numbers."""
    for key, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield key, value
