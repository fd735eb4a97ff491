"""Where a run's numbers come from: versions, hashes, machine."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from renshu.envs import Environment
from renshu.pipeline.agent import Agent
from renshu.pipeline.recipe import Recipe

PACKAGES = ("renshu", "torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")


def provenance(recipe: Recipe, environment: type[Environment], agent: Agent, base: Path) -> dict[str, Any]:
    """Everything that must be equal for two runs to be comparable, as flat JSON."""
    record: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seed": recipe.seed,
        "base": str(base.resolve()),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {agent.loaded.model.device}",
        "threads": torch.get_num_threads(),
        "model": recipe.model.name,
        "parameters": sum(p.numel() for p in agent.loaded.model.parameters()),
        "trainable": sum(p.numel() for p in agent.loaded.model.parameters() if p.requires_grad),
        "template": agent.chat.fingerprint,
        "environment": f"{environment.__module__}:{environment.__qualname__}",
        "environment_source": _hash(_source_file(environment)),
    }
    for stage in recipe.stages:
        if stage.sft is not None and stage.sft.data is not None:
            record[f"data of {stage.name}"] = _hash(base / stage.sft.data)
    return record


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _source_file(environment: type[Environment]) -> Path | None:
    module = sys.modules.get(environment.__module__)
    name = inspect.getsourcefile(module) if module is not None else None
    return Path(name) if name else None


def _hash(path: Path | None) -> str:
    """SHA-256 of a file, "" if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path is not None and path.is_file() else ""
