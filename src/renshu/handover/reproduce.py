"""`renshu reproduce`: train a packed run again, and say whether the same weights come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from renshu.errors import ConfigError, DataError
from renshu.handover.bundle import CODE_FOLDER
from renshu.handover.lock import version_differences
from renshu.handover.pack import FINAL
from renshu.pipeline.provenance import differences
from renshu.pipeline.run_folder import RunFolder
from renshu.pipeline.train import train_recipe
from renshu.pipeline.watch import Watcher

AGAIN = "again"  # the folder of the second run, inside the unpacked one
ELSEWHERE = (
    "settings:",
    "environment:",
    "recipe:",
    "model:",
)  # of a record: names and places, not what it is

Trust = Callable[[Sequence[str]], bool]  # given the files of code that will run: whether they may


@dataclass(frozen=True)
class Reproduction:
    """run: the second run. odd: weights that differ, in words. success: of the packed run and of this one."""

    run: Path
    odd: tuple[str, ...]
    success: tuple[float | None, float | None]

    @property
    def identical(self) -> bool:
        return not self.odd


def reproduce(folder: Path, trust: Trust, watcher: Watcher | None = None) -> Reproduction:
    """Train the run of an unpacked archive again, with its own threads, and compare.

    Raises ConfigError if `trust` says no: nothing of the archive has run then.
    """
    watcher = watcher or Watcher()
    run = RunFolder(folder)
    recipe = run.recipe
    code = sorted(
        p.relative_to(folder).as_posix() for p in (folder / CODE_FOLDER).rglob("*") if p.suffix == ".py"
    )
    if not trust(code):
        raise ConfigError(f"nothing was run: look at the code in {folder / CODE_FOLDER}, then pass --trust")
    lock = folder / "lock.txt"
    for difference in version_differences(lock.read_text("utf-8") if lock.is_file() else ""):
        watcher.noted(f"other version: {difference}")
    record = run.provenance
    again = recipe.model_copy(
        update={"out": str(folder / AGAIN), "threads": recipe.threads or record.get("threads")}
    )
    name = str(run.read_json("summary.json").get("recipe", "run"))
    second = train_recipe(again, name=name, base=folder / CODE_FOLDER, watcher=watcher)
    now = RunFolder(second).provenance
    for difference in differences(record, now):
        if not difference.startswith(ELSEWHERE):
            watcher.noted(f"other than in the packed run: {difference}")
    odd = tuple(_odd(folder / FINAL, second / FINAL))
    return Reproduction(second, odd, (_success(run), _success(RunFolder(second))))


def _success(run: RunFolder) -> float | None:
    (result, *_) = run.read_json("summary.json")["evaluation"].values()
    found: float | None = next(arm["success"] for arm in result["arms"] if arm["arm"] == "final")
    return found


def _odd(before: Path, now: Path) -> list[str]:
    """The weights that are not the same, bit for bit."""
    old, new = _weights(before), _weights(now)
    missing = [f"{name}: only in one of the two" for name in sorted(old.keys() ^ new.keys())]
    return missing + [
        f"{name}: {_distance(old[name], new[name])}"
        for name in sorted(old.keys() & new.keys())
        if not _same(old[name], new[name])
    ]


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    try:
        return {
            f"{path.name}/{name}": tensor
            for path in sorted(folder.glob("*.safetensors"))
            for name, tensor in load_file(path).items()
        }
    except SafetensorError as error:
        raise DataError(f"{folder}: the weights cannot be read: {error}") from None


def _same(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Bits are compared, not numbers: NaN equals itself, 0 is not -0."""
    if old.shape != new.shape or old.dtype != new.dtype:
        return False
    bits: Any = torch.uint8
    return torch.equal(old.contiguous().flatten().view(bits), new.contiguous().flatten().view(bits))


def _distance(old: torch.Tensor, new: torch.Tensor) -> str:
    if old.shape != new.shape or old.dtype != new.dtype:
        return f"{tuple(old.shape)} {old.dtype} became {tuple(new.shape)} {new.dtype}"
    return f"largest difference {(old.double() - new.double()).abs().max().item():.3g}"
