"""`renshu doctor` as functions: is this machine fit to train, and if not, what to do."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from renshu.errors import RenshuError
from renshu.models import ModelSettings
from renshu.models.get import cache_folder
from renshu.models.load import LoadedModel, load
from renshu.pipeline.provenance import PACKAGES
from renshu.tree import refusal, supports_tree, token_logprobs
from renshu.types import Row

State = Literal["ok", "warn", "fail"]
GIB = 2**30
LITTLE_DISK, LITTLE_MEMORY = 2 * GIB, 2 * GIB
EXTRAS = {  # package → what it is for, how to get it
    "gguf": ("`renshu models get` and `renshu merge --to gguf`", "pip install 'renshu[gguf]'"),
    "bitsandbytes": ("`model.adapter: qlora`", "pip install 'renshu[bnb]'"),
}
LARGEST_DIFFERENCE = 1e-3  # of a log-prob, between a token tree and separate rows


@dataclass(frozen=True)
class Diagnosis:
    """What was looked at, how it is, and what to do if it is not well."""

    name: str
    state: State
    text: str
    advice: str = ""


def diagnose(model: str = "embedded", folder: str | Path = ".") -> Iterator[Diagnosis]:
    """Look at everything, the cheap things first. folder: where runs would be written. Raises nothing."""
    looks: tuple[Callable[[], Diagnosis], ...] = (
        _python,
        _packages,
        _device,
        _threads,
        _memory,
        lambda: _disk(Path(folder)),
        lambda: _writable("runs", Path(folder), "choose another folder, or set `out` in the recipe"),
        lambda: _writable("cache", cache_folder(), "set RENSHU_CACHE to a folder that you may write"),
        *(lambda package=package: _extra(package) for package in EXTRAS),
    )
    for look in looks:
        yield look()
    yield from _model(model)


def _python() -> Diagnosis:
    system = f"{platform.system()} {platform.machine()}"
    return Diagnosis("python", "ok", f"Python {platform.python_version()} on {system}")


def _packages() -> Diagnosis:
    found, missing = [], []
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    if missing:
        return Diagnosis("packages", "fail", f"not installed: {', '.join(missing)}", "pip install renshu")
    return Diagnosis("packages", "ok", ", ".join(found))


def _device() -> Diagnosis:
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        text = f"{torch.cuda.get_device_name()}, {free / GIB:.1f} of {total / GIB:.1f} GiB free"
        return Diagnosis("device", "ok", text)
    if torch.backends.mps.is_available():
        advice = "recipes use the CPU; set model.device=mps to try the GPU"
        return Diagnosis("device", "ok", "Apple GPU", advice)
    return Diagnosis("device", "ok", "CPU; enough for the embedded model")


def _threads() -> Diagnosis:
    cpus, threads = usable_cpus(), torch.get_num_threads()
    text = f"{threads} threads on {cpus} usable CPUs"
    if threads > cpus:
        return Diagnosis(
            "threads", "warn", text, f"they wait for each other: set `threads: {cpus}` in recipes"
        )
    return Diagnosis("threads", "ok", text)


def usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # neither on macOS nor on Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory() -> Diagnosis:
    free = free_memory()
    if free is None:
        return Diagnosis("memory", "ok", "this system does not say how much is free")
    text = f"{free / GIB:.1f} GiB free"
    if free < LITTLE_MEMORY:
        return Diagnosis("memory", "warn", text, "close programs, or lower eval.at_once and token_budget")
    return Diagnosis("memory", "ok", text)


def free_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system has no /proc/meminfo."""
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def _disk(folder: Path) -> Diagnosis:
    free = shutil.disk_usage(_nearest(folder)).free
    text = f"{free / GIB:.1f} GiB free at {folder.resolve()}"
    if free < LITTLE_DISK:
        return Diagnosis("disk", "warn", text, "free space, or set `out` in the recipe to another disk")
    return Diagnosis("disk", "ok", text)


def _nearest(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    folder = folder.expanduser().resolve()
    return next(place for place in (folder, *folder.parents) if place.exists())


def _writable(name: str, folder: Path, advice: str) -> Diagnosis:
    """Whether files can be made in a folder, or in the one above in which it would be made."""
    try:
        with tempfile.TemporaryFile(dir=_nearest(folder)):
            return Diagnosis(name, "ok", f"{folder.expanduser().resolve()} can be written")
    except OSError as error:
        return Diagnosis(name, "fail", f"{folder} cannot be written: {error.strerror or error}", advice)


def _extra(package: str) -> Diagnosis:
    purpose, command = EXTRAS[package]
    if find_spec(package) is None:
        return Diagnosis(package, "warn", f"not installed; {purpose} needs it", command)
    return Diagnosis(package, "ok", f"installed, for {purpose}")


def _model(name: str) -> Iterator[Diagnosis]:
    try:
        loaded = load(ModelSettings(name=name))
    except RenshuError as error:
        yield Diagnosis("model", "fail", str(error), "name another with --model, or reinstall renshu")
        return
    size = sum(weight.numel() for weight in loaded.model.parameters())
    yield Diagnosis("model", "ok", f"{name}: {size / 1e6:.2f}M weights on {loaded.model.device}")
    yield _forward(loaded)


def _forward(loaded: LoadedModel) -> Diagnosis:
    """One pass over two rows that share a prefix: as a token tree it must say what separate rows say."""
    if not supports_tree(loaded.model):
        advice = "nothing: it is trained on separate rows, which is slower"
        return Diagnosis("tree", "warn", f"takes no token trees: {refusal(loaded.model)}", advice)
    rows = [Row((5, 3, 7, 2), (False, True, True, True)), Row((5, 3, 4, 6), (False, True, True, True))]
    with torch.no_grad():
        tree = token_logprobs(loaded.model, rows, layout="tree").logprobs
        separate = token_logprobs(loaded.model, rows, layout="padded").logprobs
    difference = (tree - separate).abs().max().item()
    if not difference < LARGEST_DIFFERENCE:  # also NaN
        advice = "this should not happen: report it with the output of `renshu doctor --json`"
        return Diagnosis("tree", "fail", f"trees and rows differ by {difference:.1g} in log-prob", advice)
    return Diagnosis("tree", "ok", f"a pass over a token tree equals separate rows (to {difference:.0e})")
