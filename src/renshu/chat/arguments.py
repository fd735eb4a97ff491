"""JSON that a model wrote, read strictly: a call is either exactly what it says, or an error with a name.

Refused: NaN and Infinity (also `1e999`), a key given twice, raw control characters in strings, lone
surrogates, trailing text. Accepted: a byte order mark before the object, and `arguments` given as a string
that holds one object (OpenAI's wire form; an empty string is an object without keys). Nothing is repaired:
single quotes, missing braces and code fences are errors, so that what is rewarded in training is what a
strict server accepts.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, Literal

from renshu.types import ToolCall

ErrorKind = Literal[
    "bad_json",  # not JSON, or more than one object where one belongs
    "truncated_arguments",  # the text ended inside the JSON
    "duplicate_key",
    "non_finite",  # NaN, Infinity, or a number too large for a float
    "not_an_object",  # the call or its arguments are not a JSON object
    "missing_name",
    "missing_arguments",
    "unclosed_call",  # the call is complete but its closing tag is not there
    "fenced_call",  # the whole message is a call in a code fence
    "decode_error",  # a Python-style call with anything but literals inside
    "unclosed_think",  # the thought never ended
    "call_inside_unclosed_think",  # a call was drafted in a thought that never ended; it is not executed
]

MAX_DEPTH = 100  # of lists and objects within each other: what walks over arguments does so recursively
_BYTE_ORDER_MARK = "\ufeff"
_BLANK = re.compile(r"[ \t\r\n\ufeff]*")


class Malformed(ValueError):
    """A call that cannot be read. Never leaves this folder: it becomes a `ParseError`."""

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        super().__init__(detail)
        self.kind: ErrorKind = kind
        self.detail = detail


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise Malformed("duplicate_key", f"the key {twice!r} is given twice")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise Malformed("non_finite", f"{text} is not a finite number")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)


def before_marker(text: str, marker: str) -> int:
    """How many characters of `text` stand before an end that may be the beginning of `marker`."""
    longest = min(len(marker) - 1, len(text))
    return next((len(text) - n for n in range(longest, 0, -1) if text.endswith(marker[:n])), len(text))


def skip_blank(text: str, start: int) -> int:
    """The first position from `start` on that is neither white space nor a byte order mark."""
    blank = _BLANK.match(text, start)
    return blank.end() if blank else start


def decode_value(text: str, start: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at `start`, and the position behind it. Raises Malformed."""
    try:
        value, end = _DECODER.raw_decode(text, skip_blank(text, start))
    except Malformed:
        raise
    except json.JSONDecodeError as error:
        ended = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        kind: ErrorKind = "truncated_arguments" if ended else "bad_json"
        raise Malformed(kind, f"{error.msg} (character {error.pos - start})") from error
    except RecursionError as error:
        raise Malformed("bad_json", "nested too deeply") from error
    except ValueError as error:  # an integer of thousands of digits
        raise Malformed("bad_json", str(error)) from error
    if _depth(value) > MAX_DEPTH:
        raise Malformed("bad_json", "nested too deeply")
    if "\\ud" in text[start:end].lower():
        _refuse_lone_surrogates(value)
    return value, end


def _depth(value: Any) -> int:
    """How many lists and objects stand within each other."""
    depth, layer = 0, [value]
    while layer := [item for item in layer if isinstance(item, list | dict)]:
        depth += 1
        layer = [part for item in layer for part in (item.values() if isinstance(item, dict) else item)]
    return depth


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise Malformed("bad_json", "half of a surrogate pair: not a character") from error


def decode_arguments(value: object) -> dict[str, Any]:
    """The arguments of a call as a dict, from an object or from a string that holds one. Raises Malformed."""
    if isinstance(value, str):
        text = value.strip().removeprefix(_BYTE_ORDER_MARK)
        if not text:
            return {}
        value, end = decode_value(text)
        if text[end:].strip():
            raise Malformed("bad_json", f"text after the arguments: {text[end:].strip()[:40]!r}")
    if not isinstance(value, dict):
        raise Malformed("not_an_object", f"arguments must be a JSON object, not {json.dumps(value)[:60]}")
    return value


def call_from(value: object, key: str = "arguments") -> ToolCall:
    """The call in a decoded `{"name": ..., key: {...}}`; `arguments` is read under either key. Raises
    Malformed.
    """
    if not isinstance(value, dict):
        raise Malformed("not_an_object", f"a call must be a JSON object, not {json.dumps(value)[:60]}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed("missing_name", 'the call has no "name"')
    found = next((k for k in (key, "arguments") if k in value), None)
    if found is None:
        raise Malformed(
            "missing_arguments", f'the call of {name} has no "{key}"; write {{}} if there are none'
        )
    return ToolCall(name=name, arguments=decode_arguments(value[found]))
