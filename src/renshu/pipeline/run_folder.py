"""The run folder: the interface between training, evaluation and report.

recipe.resolved.yaml   the settings with every default written out
provenance.json        versions, hashes of template, environment and data, machine, seed
metrics.jsonl          one line a step
findings.jsonl         what was noticed: data left out (step 0), sampler and trainer that disagree, …
trajectories/          STAGE/step-00001.jsonl, all episodes with token ids; samples.jsonl, a few with text
checkpoints/           best (on dev), final (what was kept)
evaluation/            ARM.jsonl, one line a task
summary.json           written last: its presence says that the run is complete
report.html
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from renshu.errors import ConfigError

MARKS = ("recipe.resolved.yaml", "provenance.json")  # a folder with one of these is a run


class RunFolder:
    """Paths of a run, and writes that are complete or absent."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> RunFolder:
        """A new, empty run folder; with `overwrite` in the place of an earlier run. Raises ConfigError."""
        path = Path(path)
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            is_run = path.is_dir() and any((path / mark).is_file() for mark in MARKS)
            if not (is_run and overwrite):
                hint = (
                    "pass --overwrite, or choose another place with out=…"
                    if is_run
                    else "choose another place with out=…"
                )
                raise ConfigError(f"{path} exists{' and holds a run' if is_run else ''}: {hint}")
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path)

    def file(self, *parts: str) -> Path:
        """The path of a file or folder of the run, its parent made."""
        path = self.path.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_text(self, name: str, text: str) -> Path:
        """Write a file so that a reader sees all of it or nothing."""
        path = self.file(name)
        temporary = path.with_name(path.name + ".tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        return path

    def write_json(self, name: str, value: Mapping[str, Any]) -> Path:
        return self.write_text(name, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")

    def append_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append JSON lines."""
        text = "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)
        with self.file(name).open("a", encoding="utf-8") as file:
            file.write(text)

    def read_json(self, name: str) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.path / name).read_text("utf-8"))
        return value


def is_run(path: str | Path) -> bool:
    return (Path(path) / MARKS[0]).is_file()
