"""Which weights are kept: those that solved most dev tasks, the later ones where two are equal."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from renshu.models.load import LoadedModel, save
from renshu.train.checkpoint import atomic_folder, load_weights
from renshu.train.optimiser import trainable


@dataclass(frozen=True)
class Mark:
    """A moment of training: after `step` steps of `stage`."""

    stage: str
    step: int


class Keeper:
    """Keeps the best trainable weights on disk while training goes on."""

    def __init__(self, loaded: LoadedModel, folder: Path) -> None:
        self.loaded, self.folder = loaded, folder
        self.best: Mark | None = None
        self.success = -1.0

    def offer(self, mark: Mark, success: float | None) -> bool:
        """Keep the weights as they are now if none were better; unknown success is worse than any."""
        value = -0.5 if success is None else success
        if value < self.success:
            return False
        self.best, self.success = mark, value
        with atomic_folder(self.folder / "best") as temporary:
            weights = {
                name: p.detach().cpu().contiguous() for name, p in trainable(self.loaded.model).items()
            }
            save_file(weights, temporary / "trainable.safetensors")
        return True

    def finish(self) -> Mark:
        """Put the best weights back in place, write them as a model of their own, and say which they are."""
        assert self.best is not None, "nothing was offered"
        load_weights(self.folder / "best", self.loaded.model)
        with atomic_folder(self.folder / "final") as temporary:
            save(self.loaded, temporary)
        return self.best
