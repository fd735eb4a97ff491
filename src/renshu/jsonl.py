"""JSON lines: how all files of one object a line, or of one object, are written and read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from renshu.errors import DataError


def line_of(row: Mapping[str, Any]) -> bytes:
    """A line with its end. Unknown numbers (NaN, infinite) become null, other things that JSON cannot say
    become text, and half a surrogate pair is escaped.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(_known(row), ensure_ascii=False, default=str)
    return f"{text}\n".encode("utf-8", "backslashreplace")


def _known(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _known(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_known(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Append lines to a file, which is made, with its folder, if there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(map(line_of, rows)))


def read_rows(path: Path, keys: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The objects of a file that Renshu wrote, none if there is no file; each has the `keys`.

    A last line without its end is left out: its writer was stopped. Raises DataError naming a damaged line.
    """
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    *whole, _torn = text.split("\n")  # not `splitlines`: a text may hold U+2028, which JSON leaves as it is
    return [_object(line, f"{path} is damaged at line {n}", keys) for n, line in enumerate(whole, start=1)]


def read_object(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """The object that is all of a file that Renshu wrote. Raises DataError if it is missing or damaged."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is damaged: {error.reason} at byte {error.start}") from None
    return _object(text, f"{path} is damaged", keys)


def _object(text: str, damaged: str, keys: Sequence[str]) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError:
        raise DataError(f"{damaged}: nested too deeply") from None
    except ValueError as error:
        raise DataError(f"{damaged}: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"{damaged}: expected an object, found {text[:40]!r}")
    if missing := [key for key in keys if key not in value]:
        raise DataError(f"{damaged}: it has no {', '.join(missing)}")
    return value


def user_lines(path: Path) -> list[str]:
    """The lines of a user's file but blank ones. Raises DataError if it cannot be read, or is not UTF-8."""
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise DataError(f"{path.absolute()} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise DataError(f"{path.absolute()} is not UTF-8 text: {where}") from None
    return [line for line in text.split("\n") if line.strip()]


def parse_json(text: str) -> Any:
    """Strict JSON: without NaN, without numbers too large for a float, and no key twice.

    Raises ValueError("not JSON"), or one that says which key is there twice.
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_unique)
    except _TwiceError:
        raise
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None


class _TwiceError(ValueError):
    """A key that an object has twice: nobody knows which value is meant."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise _TwiceError(f"the key {key[:40]!r} twice in an object")
        result[key] = value
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
