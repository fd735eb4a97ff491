"""`metrics.jsonl`: one line a step, appended whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from renshu.jsonl import line_of, read_rows


class MetricsLog:
    """Records of numbers in a file. Unknown ones (NaN, infinite) become null, which JSON can say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._drop_torn_line()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line with a single call, so that a reader never sees a part of it."""
        line = line_of(record)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, "the disk is full", str(self.path))
        finally:
            os.close(handle)

    def read(self) -> list[dict[str, Any]]:
        """Raises DataError naming a damaged line."""
        return read_rows(self.path)

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Remove all other records: those of steps that a resumed run is going to repeat."""
        self._replace(b"".join(line_of(record) for record in self.read() if wanted(record)))

    def amend(self, wanted: Callable[[dict[str, Any]], bool], values: Mapping[str, Any]) -> None:
        """Add to the records that are wanted."""
        rows = [row | dict(values) if wanted(row) else row for row in self.read()]
        self._replace(b"".join(map(line_of, rows)))

    def _drop_torn_line(self) -> None:
        """A crash in the middle of a write leaves a last line without its end."""
        whole, newline, torn = self.path.read_bytes().rpartition(b"\n")
        if torn:
            self._replace(whole + newline)

    def _replace(self, data: bytes) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_bytes(data)
        os.replace(temporary, self.path)
