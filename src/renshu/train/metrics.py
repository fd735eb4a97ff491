"""`metrics.jsonl`: one line a step, appended whole or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class MetricsLog:
    """Records of numbers in a file. Unknown ones (NaN, infinite) become null, which JSON can say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._drop_torn_line()

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line with a single call, so that a reader never sees a part of it."""
        line = _line(record).encode("utf-8", "backslashreplace")  # half a surrogate pair as JSON escapes it
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, "the disk is full", str(self.path))
        finally:
            os.close(handle)

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # Not `splitlines`: a text may hold U+2028, which JSON leaves as it is.
        return [json.loads(line) for line in self.path.read_text("utf-8").split("\n") if line]

    def keep(self, wanted: Callable[[dict[str, Any]], bool]) -> None:
        """Remove all other records: those of steps that a resumed run is going to repeat."""
        self._replace("".join(_line(record) for record in self.read() if wanted(record)))

    def _drop_torn_line(self) -> None:
        """A crash in the middle of a write leaves a last line without its end."""
        whole, newline, torn = self.path.read_bytes().decode("utf-8", errors="replace").rpartition("\n")
        if torn:
            self._replace(whole + newline)

    def _replace(self, text: str) -> None:
        temporary = self.path.with_name(self.path.name + ".tmp")
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        os.replace(temporary, self.path)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps({key: _plain(value) for key, value in record.items()}, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
