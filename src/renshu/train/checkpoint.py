"""Checkpoints that survive a crash: a folder is either complete, marker and all, or it does not count.

`checkpoint-40/` holds `trainable.safetensors` (the parameters being trained, by name), `state.json`,
`optimiser.safetensors` where moments are kept, and, written last, `complete.json` with the size of every
file. All of it is written under another name, which is changed once it is on the disk.

Of several processes the first writes, and all read; what is written is whole, so that it does not matter how
many they are. All of them call `save` and `save_weights`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from renshu.errors import CheckpointError, DataError
from renshu.jsonl import read_object
from renshu.models.sharded import part_of, whole_tensor
from renshu.train.optimiser import Trained, of_critic, of_policy
from renshu.train.processes import ALONE, Processes

MARKER = "complete.json"
WEIGHTS = "trainable.safetensors"
CRITIC_WEIGHTS = "critic.safetensors"  # beside the weights with which a stage ended
MOMENTS = "optimiser.safetensors"
_NAME = re.compile(r"checkpoint-(\d+)")
_COPIES = 3  # the parameters and AdamW's two moments


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends, and vanishes if it fails.

    Files are flushed to the disk, then the marker, then the folder is renamed; an earlier `path` goes last.
    Raises CheckpointError where the disk refuses; whatever was complete before stays so.
    """
    temporary, earlier = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".old")
    try:
        _bring_back(earlier, path)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        files = sorted(file for file in temporary.rglob("*") if file.is_file())
        sizes = {file.relative_to(temporary).as_posix(): file.stat().st_size for file in files}
        for file in files:
            _flush(file)
        (temporary / MARKER).write_text(marker_text(sizes), encoding="utf-8")
        _flush(temporary / MARKER)
        _flush(temporary)
        if path.exists():
            shutil.rmtree(earlier, ignore_errors=True)
            os.rename(path, earlier)
        os.rename(temporary, path)
        _flush(path.parent)
        shutil.rmtree(earlier, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path}: cannot be written: {error}; free space or choose another folder"
        ) from error
    finally:
        _bring_back(earlier, path)
        shutil.rmtree(temporary, ignore_errors=True)


def _bring_back(earlier: Path, path: Path) -> None:
    """Undo a replacement that was broken off between its two renames."""
    if earlier.exists() and not path.exists():
        os.rename(earlier, path)


def recover(folder: Path) -> None:
    """Undo replacements of checkpoints that a kill broke off; only the writer of `folder` may call it."""
    for earlier in folder.glob("checkpoint-*.old"):
        _bring_back(earlier, earlier.with_suffix(""))


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. Windows opens no folder, and waits only
    for files that may be written.
    """
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def marker_text(sizes: Mapping[str, int]) -> str:
    """What the marker of a complete folder says: the size of every file in it."""
    return json.dumps(sizes, indent=1)


def is_complete(path: Path) -> bool:
    """Whether the marker is there and every file has the size it names."""
    try:
        sizes = json.loads((path / MARKER).read_text(encoding="utf-8"))
        return all((path / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


@dataclass(frozen=True)
class Latest:
    """path: the newest complete checkpoint, or None. skipped: newer ones that are incomplete, in words."""

    path: Path | None
    skipped: tuple[str, ...]


def latest(folder: Path) -> Latest:
    """The complete checkpoint of the highest step in `folder`; steps are compared as numbers."""
    found = [(int(match[1]), path) for path in folder.glob("*") if (match := _NAME.fullmatch(path.name))]
    skipped: list[str] = []
    for step, path in sorted(found, reverse=True):
        if is_complete(path):
            return Latest(path, tuple(skipped))
        skipped.append(f"{step} is incomplete")
    return Latest(None, tuple(skipped))


def save(
    folder: Path,
    step: int,
    trained: Trained,
    optimiser: torch.optim.Optimizer | None,
    state: Mapping[str, Any],
    *,
    files: Mapping[str, Path] | None = None,
    keep: int = 2,
    processes: Processes = ALONE,
) -> Path:
    """Write `folder/checkpoint-{step}`, then remove all but the `keep` newest complete ones; returns it.

    optimiser: None between two stages, where there are no moments. files: others that belong to it, by the
    names they get in it; they must never be written into again, as they take no second place on the disk.
    """
    path = folder / f"checkpoint-{step}"
    tensors = {WEIGHTS: _whole(trained, processes)}
    if optimiser is not None:
        tensors[MOMENTS] = _whole(_moments(trained, optimiser), processes)
    text = json.dumps({"step": step, **state}, indent=1)

    def write() -> None:
        with atomic_folder(path) as temporary:
            for name, named in tensors.items():
                save_file(named, temporary / name)
            for name, file in (files or {}).items():
                link(file, temporary / name)
            (temporary / "state.json").write_text(text, encoding="utf-8")
        _keep_newest(folder, keep)

    processes.led(write)
    return path


def _keep_newest(folder: Path, keep: int) -> None:
    complete = [
        entry for entry in folder.glob("checkpoint-*") if _NAME.fullmatch(entry.name) and is_complete(entry)
    ]
    for old in sorted(complete, key=lambda entry: int(entry.name.split("-")[1]))[:-keep]:
        shutil.rmtree(old)


def save_weights(folder: Path, trained: Trained, processes: Processes = ALONE) -> None:
    """Write a folder that `load_weights` reads: the parameters being trained, those of a critic apart."""
    tensors = {WEIGHTS: _whole(of_policy(trained), processes)}
    if critic := of_critic(trained):
        tensors[CRITIC_WEIGHTS] = _whole(critic, processes)

    def write() -> None:
        with atomic_folder(folder) as temporary:
            for name, named in tensors.items():
                save_file(named, temporary / name)

    processes.led(write)


def link(file: Path, name: Path) -> None:
    """A second name of a file; a copy where the file system has no such thing."""
    try:
        os.link(file, name)
    except OSError:
        shutil.copyfile(file, name)


def remove_all(folder: Path) -> None:
    """Remove every `checkpoint-{step}` in `folder`, whole or not."""
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)


def _whole(tensors: Mapping[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """All tensors, none of them in part, in the process that writes them; none in the others."""
    found = {}
    for name, tensor in tensors.items():  # one after the other: together they may be too much
        whole = whole_tensor(tensor.detach())
        if processes.leads:
            found[name] = whole.contiguous().cpu()
    return found


def _moments(trained: Trained, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in trained.items()}
    return {
        f"{names[parameter]}/{key}": value
        for parameter, values in optimiser.state.items()
        for key, value in values.items()
    }


def load(path: Path, trained: Trained, optimiser: torch.optim.Optimizer | None = None) -> dict[str, Any]:
    """Put a checkpoint's parameters, and its moments if `optimiser` is given, in place; returns its state.

    Raises CheckpointError if it is incomplete, or its names or shapes are not those of `trained`.
    """
    load_weights(path, trained)
    if optimiser is not None:
        _load_moments(path, trained, optimiser)
    return read_state(path)


def read_state(path: Path) -> dict[str, Any]:
    """The state of a complete checkpoint. Raises CheckpointError if it is damaged."""
    try:
        return read_object(path / "state.json")
    except DataError as error:
        raise CheckpointError(f"{error}; take an earlier checkpoint") from None


def load_weights(path: Path, trained: Trained) -> None:
    """Put a checkpoint's parameters in place. Raises CheckpointError as `load` does."""
    _put(require_fit(path, trained), trained)


def load_critic(path: Path, trained: Trained) -> None:
    """Put the critic in place that `save_weights` wrote; the policy stays. Raises CheckpointError."""
    critic = of_critic(trained)
    _put(require_fit(path, critic, CRITIC_WEIGHTS), critic)


def _put(weights: Mapping[str, Tensor], trained: Trained) -> None:
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(part_of(weights[name], parameter))


def require_fit(path: Path, trained: Trained, name: str = WEIGHTS) -> dict[str, Tensor]:
    """A checkpoint's parameters. Raises CheckpointError if it is incomplete, or of another model."""
    if not is_complete(path):
        raise CheckpointError(
            f"{path} is incomplete: it was not written to its end; take an earlier checkpoint"
        )
    weights = _read(path / name)
    _check_fit(path, weights, trained)
    return weights


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file} is damaged: {error}; take an earlier checkpoint") from error


def _check_fit(path: Path, weights: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    odd = sorted(weights.keys() ^ parameters.keys())
    if odd:
        raise CheckpointError(
            f"{path} is of another model or adapter: {len(odd)} names differ, e.g. {odd[0]!r}"
        )
    for name, weight in weights.items():
        if weight.shape != parameters[name].shape:
            shapes = f"{tuple(weight.shape)}, the model's {tuple(parameters[name].shape)}"
            raise CheckpointError(f"{path} is of another model: its {name} has shape {shapes}")


def _load_moments(path: Path, trained: Trained, optimiser: torch.optim.Optimizer) -> None:
    optimiser.state.clear()
    for key, value in _read(path / MOMENTS).items():
        name, _, moment = key.rpartition("/")
        if name not in trained:
            raise CheckpointError(f"{path} is of another model: it has moments of {name!r}")
        parameter = trained[name]
        # The step counter stays on the CPU, where AdamW keeps it. A copy is aligned like any tensor of ours.
        value = value.clone()
        optimiser.state[parameter][moment] = value if value.ndim == 0 else part_of(value, parameter)


def check_space(folder: Path, trained: Trained, *, keep: int = 2, copies: int = 0, critics: int = 0) -> None:
    """Raise CheckpointError, before any training, if the disk cannot hold `keep` checkpoints and another.

    copies: of the weights alone, which are kept beside them. critics: stages with one that is as large as
    what is trained. folder: need not exist yet.
    """
    size = sum(parameter.numel() * parameter.element_size() for parameter in trained.values())
    needed = size * (_COPIES * (keep + 1) * (2 if critics else 1) + copies + critics)
    existing = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(existing).free
    if free < needed:
        sizes = f"about {needed / 2**20:,.0f} MiB, but {free / 2**20:,.0f} are free"
        raise CheckpointError(f"{folder}: {keep + 1} checkpoints need {sizes}; free space or move the run")
