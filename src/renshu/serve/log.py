"""Requests as a production sample: JSON lines that a supervised stage, or a person, can read.

A line: `time` (UTC), `id` of the answer, `model`, `messages` (the answer is the last), `tools`,
`temperature`, `finish`, `seconds`, `usage`. Of several choices the first is written.
"""

from __future__ import annotations

import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from renshu.chat.wire import write_message
from renshu.errors import ConfigError
from renshu.jsonl import line_of
from renshu.serve.answer import Answer
from renshu.serve.form import usage
from renshu.serve.request import ChatRequest

LIMIT = 64 << 20  # bytes of the file; then it becomes the older one, which is replaced
LONGEST = 1 << 20  # bytes of a line


class RequestLog:
    """Appends a line a request; the two files together stay below twice the limit.

    Lines are written whole. left_out: requests whose line would be longer than a megabyte, or that the disk
    refused. Only the owner may read the files. Raises ConfigError if the file cannot be opened.
    """

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path, self.limit, self.left_out = path, limit, 0
        self._guard = threading.Lock()
        try:
            self._file = self._open()
        except OSError as error:
            raise ConfigError(
                f"--log {path}: cannot be written: {error.strerror}; name another file"
            ) from None

    @property
    def older(self) -> Path:
        """Where the lines before the present file went: `requests.old.jsonl` of `requests.jsonl`."""
        return self.path.with_name(f"{self.path.stem}.old{self.path.suffix}")

    def add(self, identity: str, request: ChatRequest, answer: Answer, seconds: float) -> None:
        """Write the line of an answered request."""
        first = answer.choices[0]
        record: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "id": identity,
            "model": request.model,
            "messages": [write_message(message) for message in (*request.messages, first.message)],
            "tools": list(request.tools),
            "temperature": request.sampling.temperature,
            "finish": first.finish,
            "seconds": round(seconds, 3),
            "usage": usage(answer),
        }
        line = line_of(record)
        with self._guard:
            try:
                self._write(line)
            except OSError:  # a full disk must not cost the client its answer
                self.left_out += 1

    def close(self) -> None:
        """No more lines; closing twice is harmless."""
        with self._guard:
            file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self, line: bytes) -> None:
        if len(line) > min(LONGEST, self.limit):
            self.left_out += 1
            return
        size = os.fstat(self._file).st_size
        if size + len(line) > self.limit:
            os.close(self._file)
            os.replace(self.path, self.older)
            self._file = self._open()
            size = 0
        if os.write(self._file, line) < len(line):  # the disk took half of it
            os.ftruncate(self._file, size)
            self.left_out += 1

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
