"""Where a run's numbers come from: versions, hashes, machine."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from renshu.models.adapters import fingerprint
from renshu.pipeline.agent import Agent
from renshu.pipeline.origins import origin_record
from renshu.pipeline.recipe import Recipe, dump_recipe
from renshu.pipeline.sources import source_record

PACKAGES = ("renshu", "torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")

# What may differ between the two halves of a run: they say when, where and on what it was played.
CIRCUMSTANCES = ("started", "base", "machine", "threads", "processes")


def provenance(recipe: Recipe, name: str, agent: Agent, base: Path) -> dict[str, Any]:
    """Everything that must be equal for two runs to be comparable, as flat JSON. name: of the recipe."""
    record: dict[str, Any] = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "recipe": name,
        "settings": hashlib.sha256(dump_recipe(recipe).encode()).hexdigest(),
        "seed": recipe.seed,
        "base": str(base.resolve()),
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {agent.loaded.model.device}",
        "threads": torch.get_num_threads(),
        "model": recipe.model.name,
        "weights": fingerprint(agent.loaded.model),
        "parameters": sum(p.numel() for p in agent.loaded.model.parameters()),
        "trainable": sum(p.numel() for p in agent.loaded.model.parameters() if p.requires_grad),
        "template": agent.chat.fingerprint,
        "environment": recipe.env,
        **(source_record(recipe.env, base) if recipe.env is not None else {}),
    }
    return record | origin_record(recipe, base)


def without_circumstances(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in CIRCUMSTANCES}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs between two records, in words: `torch: 2.6.0, now 2.7.1`. Circumstances do not count."""
    names = [name for name in (*before, *(now.keys() - before.keys())) if name not in CIRCUMSTANCES]
    return [
        f"{name}: {_short(before.get(name))}, now {_short(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _short(value: Any) -> str:
    """A hash is told by its first letters."""
    return "none" if value in (None, "") else str(value)[:12]


def version_of(name: str) -> str:
    """The version of a package that is installed here, or `none`."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
