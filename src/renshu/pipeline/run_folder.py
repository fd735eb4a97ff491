"""The run folder: the interface between training, evaluation and report.

recipe.resolved.yaml   the settings with every default written out
provenance.json        versions, hashes of template, environment and data, machine, seed
metrics.jsonl          one line a step
findings.jsonl         what was noticed: data left out (step 0), sampler and trainer that disagree, …
trajectories/          STAGE/step-00001.jsonl, all episodes with token ids; samples.jsonl, a few with text
checkpoints/           best (on dev), final (what was kept), stages/NAME (weights after each stage); until the
                       run is complete checkpoint-40, from which it can be resumed
evaluation/            ARM.jsonl, one line a task
trackers/              files of the trackers that the recipe names
must_pass.json         the recipe's must-pass cases, played again after training
summary.json           written last: its presence says that the run is complete
failure.json           what ended a run that failed, until it is resumed
report.html
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self

from renshu.errors import ConfigError
from renshu.jsonl import append_rows, read_object
from renshu.pipeline.recipe import Recipe, read_recipe

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SUMMARY = "summary.json"
FAILURE = "failure.json"
RECIPE = "recipe.resolved.yaml"
PROVENANCE = "provenance.json"
MARKS = (RECIPE, PROVENANCE)  # a folder with one of these is a run
LOCK = ".lock"  # held by the process that writes a run; the system lets go of it when that process dies


class RunFolder:
    """Paths of a run, and writes that are complete or absent."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock: IO[bytes] | None = None

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> RunFolder:
        """A new, empty run folder; with `overwrite` in the place of an earlier run, unless it is still going
        on.

        No other process can create it again until `close`. Raises ConfigError.
        """
        run = cls(path)
        run.begin(overwrite=overwrite)
        return run

    def begin(self, *, overwrite: bool = False) -> None:
        """Make the folder, as `create` does."""
        try:
            require_free(self.path, overwrite=overwrite)
            with _writing(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
                self._hold()
            require_free(self.path, overwrite=overwrite)  # another process may have been faster
            with _writing(self.path):
                for entry in self.path.iterdir():
                    if entry.is_dir() and not entry.is_symlink():
                        shutil.rmtree(entry)
                    elif entry.name != LOCK:
                        entry.unlink()
        except ConfigError:
            self.close()
            raise

    @classmethod
    def reopen(cls, path: str | Path) -> RunFolder:
        """The folder of a run that was broken off, held as `create` does. Raises ConfigError."""
        run = cls(path)
        run.hold()
        return run

    def hold(self) -> None:
        """Hold the folder, as `reopen` does."""
        self.require()
        try:
            self._hold()
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written ({error.strerror})") from None

    def require(self) -> Self:
        """Raises ConfigError if there is no run."""
        if not is_run(self.path):
            raise ConfigError(f"{self.path} holds no run: there is no {MARKS[0]} in it")
        return self

    @property
    def held(self) -> bool:
        """Whether a process writes this run now; never, where files cannot be locked."""
        if fcntl is None or not (self.path / LOCK).is_file():
            return False
        try:
            with (self.path / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def _hold(self) -> None:
        """Raises ConfigError if another process holds the folder; where files cannot be locked, none does."""
        lock = (self.path / LOCK).open("wb")
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise ConfigError(
                f"{self.path} is being written by another run: wait for it or choose another place with out=…"
            ) from None
        except OSError:  # a file system without locks
            pass
        self._lock = lock

    def close(self) -> None:
        """Let go of a folder that was created; closing twice is harmless."""
        if self._lock is not None:
            if fcntl is None:  # Windows removes no file that is open
                self._lock.close()
            (self.path / LOCK).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    @property
    def recipe(self) -> Recipe:
        """The resolved recipe. Raises ConfigError."""
        return read_recipe(str(self.path / RECIPE))

    @property
    def provenance(self) -> dict[str, Any]:
        """Raises DataError."""
        return self.read_json(PROVENANCE)

    @property
    def base(self) -> Path:
        """The folder that relative paths of the recipe start from. Raises DataError."""
        return Path(str(self.provenance.get("base", "")))

    def evaluation(self, arm: str) -> Path:
        """The file of an arm's greedy episodes."""
        return self.path / "evaluation" / f"{arm}.jsonl"

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
        append_rows(self.path / name, rows)

    def read_json(self, name: str) -> dict[str, Any]:
        """Raises DataError if the file is missing or damaged."""
        return read_object(self.path / name)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turns what the disk says into a ConfigError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be written ({reason}): choose another place with out=…") from None


def require_free(path: Path, *, overwrite: bool) -> None:
    """Raises ConfigError if something else is at `path`, or a run that must not be overwritten."""
    with _writing(path):
        if not path.exists() or (path.is_dir() and all(entry.name == LOCK for entry in path.iterdir())):
            return
        is_run = path.is_dir() and any((path / mark).is_file() for mark in MARKS)
    if not (is_run and overwrite):
        hint = "pass --overwrite, or choose another place" if is_run else "choose another place"
        raise ConfigError(f"{path} exists{' and holds a run' if is_run else ''}: {hint} with out=…")


def is_run(path: str | Path) -> bool:
    return (Path(path) / MARKS[0]).is_file()
