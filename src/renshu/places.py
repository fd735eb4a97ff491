"""Whether a file can be written, asked before the work whose outcome it is to hold."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from renshu.errors import ConfigError


def require_writable(path: Path, option: str) -> None:
    """Raise ConfigError if the file that `option` names could not be written; nothing is left behind.

    Folders above it need not be there yet.
    """
    try:
        reason = _refusal(path)
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or str(error)
    if reason is not None:
        raise ConfigError(f"{option} {path}: cannot be written: {reason}; name another file")


def _refusal(path: Path) -> str | None:
    if path.is_dir():
        return "it is a folder"
    if path.is_file():
        path.open("ab").close()
    elif path.exists():  # a device such as /dev/stdout, or a pipe, which would wait for its reader
        return None if os.access(path, os.W_OK) else "permission denied"
    folder = next(place for place in path.absolute().parents if place.exists())
    with tempfile.NamedTemporaryFile(dir=folder, prefix=path.name):
        return None
