"""Tasks: problem instances in three splits, read from a file or generated from seeds of their identity."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Literal, overload

from renshu.errors import ConfigError, DataError
from renshu.jsonl import parse_json, user_lines
from renshu.seeding import generator, stable_hash
from renshu.types import Task

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class GeneratedSplit(Sequence[Task]):
    """Tasks made when asked for. Task i depends on `name/split/i` alone, not on the others or on the split's
    length.
    """

    def __init__(
        self, fields: Callable[[Random], Mapping[str, Any]], name: str, split: Split, length: int
    ) -> None:
        self.fields, self.name, self.split, self.length = fields, name, split, length

    def __len__(self) -> int:
        return self.length

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        chosen = range(self.length)[index]  # raises IndexError as a list does
        return self._make(chosen) if isinstance(chosen, int) else [self._make(i) for i in chosen]

    def __iter__(self) -> Iterator[Task]:
        return (self._make(i) for i in range(self.length))

    def _make(self, index: int) -> Task:
        identity = f"{self.name}/{self.split}/{index}"
        try:
            return Task(identity, dict(self.fields(generator(identity))))
        except Exception as error:
            raise DataError(f"task {identity} cannot be made: {type(error).__name__}: {error}") from error


class Tasks:
    """The tasks of an environment: `train` to practise on, `dev` to choose by, `test` to report on."""

    def __init__(
        self,
        train: Sequence[Task] = (),
        dev: Sequence[Task] = (),
        test: Sequence[Task] = (),
        set_aside: Mapping[str, int] | None = None,
    ) -> None:
        self.train, self.dev, self.test = train, dev, test
        self.set_aside = dict(set_aside or {})  # rows that could not be read, by reason

    def split(self, name: Split) -> Sequence[Task]:
        """The tasks of one split. Raises DataError if it is empty."""
        tasks: Sequence[Task] = getattr(self, name)
        if not tasks:
            raise DataError(f"the {name} split has no tasks; add rows or change how the tasks are split")
        return tasks

    @classmethod
    def generated(
        cls, fields: Callable[[Random], Mapping[str, Any]], *, train: int, dev: int, test: int, name: str = ""
    ) -> Tasks:
        """Tasks from a function of a `random.Random`, which returns the fields of one task.

        Seeded by identity (`name/split/index`): no two tasks share a stream, and a longer split keeps its
        first tasks.
        """
        name = name or fields.__name__
        sizes = {"train": train, "dev": dev, "test": test}
        if min(sizes.values()) < 0:
            raise ConfigError(f"tasks {name!r}: a split cannot have {min(sizes.values())} tasks")
        train_tasks, dev_tasks, test_tasks = (
            GeneratedSplit(fields, name, split, sizes[split]) for split in SPLITS
        )
        return cls(train_tasks, dev_tasks, test_tasks)

    @classmethod
    def from_jsonl(
        cls, path: str | Path, *, split_by: str = "id", shares: tuple[float, float, float] = (0.8, 0.1, 0.1)
    ) -> Tasks:
        """Tasks from a file with one JSON object a line; its keys become the fields of the task.

        Rows are split by a hash of the field `split_by`, `shares` of them into train, dev and test: rows with
        an equal value land in the same split. With `split_by="split"` that field names the split itself. The
        field `id`, or else the number of the row, identifies the task. Rows that cannot be read are set aside
        and counted by reason. Raises DataError if the file is missing or holds no row that can be read.
        """
        path = Path(path)
        if len(shares) != 3 or min(shares) < 0 or abs(sum(shares) - 1) > 1e-9:
            raise ConfigError(f"{path}: shares {shares} must be three parts of 1, for train, dev and test")
        splits: dict[Split, list[Task]] = {split: [] for split in SPLITS}
        set_aside: Counter[str] = Counter()
        seen: set[str] = set()
        for number, line in enumerate(user_lines(path)):
            try:
                row = _read_row(line, split_by)
                told = number if row.get("id") is None else row["id"]
                identity = f"{path.stem}/{told}".encode("utf-8", "replace").decode()  # seeds are made of it
                if identity in seen:
                    raise ValueError("repeated id")
            except ValueError as reason:
                set_aside[str(reason)] += 1
                continue
            seen.add(identity)
            splits[_split_of({**row, "id": told}[split_by], split_by, shares)].append(Task(identity, row))
        if not seen:
            detail = ", ".join(f"{reason}: {count} rows" for reason, count in set_aside.items())
            raise DataError(
                f"{path.absolute()}: no task ({detail or 'the file is empty'}); write one JSON object a line"
            )
        return cls(splits["train"], splits["dev"], splits["test"], set_aside)


def _read_row(line: str, split_by: str) -> dict[str, Any]:
    """The object on a line. Raises ValueError with the reason to count a row by that cannot be used."""
    row = parse_json(line)
    if not isinstance(row, dict):
        raise ValueError("not an object")
    if split_by not in row and split_by != "id":
        raise ValueError(f"no field {split_by!r}")
    if split_by == "split" and row["split"] not in SPLITS:
        raise ValueError("unknown split")
    return row


def _split_of(value: Any, split_by: str, shares: tuple[float, float, float]) -> Split:
    if split_by == "split":
        return next(split for split in SPLITS if split == value)
    train, dev, _ = shares
    position = stable_hash("split", json.dumps(value, sort_keys=True)) % 10_000 / 10_000
    return "train" if position < train else "dev" if position < train + dev else "test"
