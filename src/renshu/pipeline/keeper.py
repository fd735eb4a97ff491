"""Which weights are kept: those that solved most dev tasks, the later ones where two are equal."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from renshu.models.load import LoadedModel, save
from renshu.models.sharded import whole, whole_weights
from renshu.train.checkpoint import WEIGHTS, atomic_folder, link, load_weights, save_weights
from renshu.train.optimiser import trainable
from renshu.train.processes import ALONE, Processes

KEPT = "best.safetensors"  # the best weights so far, in a checkpoint


@dataclass(frozen=True)
class Mark:
    """A moment of training: after `step` steps of `stage`."""

    stage: str
    step: int


class Keeper:
    """Keeps the best trainable weights on disk while training goes on."""

    def __init__(self, loaded: LoadedModel, folder: Path, processes: Processes = ALONE) -> None:
        self.loaded, self.folder, self.processes = loaded, folder, processes
        self.best: Mark | None = None
        self.success = -1.0

    def offer(self, mark: Mark, success: float | None) -> bool:
        """Keep the weights as they are now if none were better; unknown success is worse than any."""
        value = -0.5 if success is None else success
        if value < self.success:
            return False
        self.best, self.success = mark, value
        save_weights(self.folder / "best", trainable(self.loaded.model), self.processes)
        return True

    def state(self) -> dict[str, Any]:
        """What a checkpoint says of it, as JSON; the weights are in `files`."""
        return {"best": asdict(self.best) if self.best else None, "success": self.success}

    @property
    def files(self) -> dict[str, Path]:
        """The best weights by the name they have in a checkpoint; none before the first offer."""
        return {KEPT: self.folder / "best" / WEIGHTS} if self.best else {}

    def restore(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Keep what was kept when `checkpoint` was written, whatever was kept since."""
        self.best = Mark(**state["best"]) if state["best"] else None
        self.success = state["success"]
        self.processes.led(lambda: self._bring_back(checkpoint))

    def _bring_back(self, checkpoint: Path) -> None:
        if self.best is None:
            shutil.rmtree(self.folder / "best", ignore_errors=True)
            return
        with atomic_folder(self.folder / "best") as temporary:
            link(checkpoint / KEPT, temporary / WEIGHTS)

    def finish(self) -> Mark:
        """Put the best weights back in place, write them as a model of their own, and say which they are."""
        assert self.best is not None, "nothing was offered"
        load_weights(self.folder / "best", trainable(self.loaded.model))
        weights = whole_weights(self.loaded.model)

        def write() -> None:
            with atomic_folder(self.folder / "final") as temporary:
                save(self.loaded, temporary, weights)

        with whole(self.loaded.model):
            self.processes.led(write)
        return self.best
