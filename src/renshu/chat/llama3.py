"""Calls of Llama 3: `{"name": ..., "parameters": {...}}` as the whole message, after `<|python_tag|>`, or as
`<function=f>{...}</function>`; the small 3.2 models write Python-style lists (`pythonic`).

A message that is a JSON object without "name" and "parameters" is an answer in JSON, not a call.
"""

from __future__ import annotations

import json
import re

from renshu.chat.arguments import (
    Malformed,
    before_marker,
    call_from,
    decode_arguments,
    decode_value,
    skip_blank,
)
from renshu.chat.pythonic import Pythonic
from renshu.chat.reply import ParseError
from renshu.types import ToolCall

TAG = "<|python_tag|>"
FUNCTION, END = "<function=", "</function>"
_CALL_BEGINS = re.compile(r'\s*\{\s*"(?:name|type)"\s*:')  # `type` as in {"type": "function", "name": ...}


class Llama3:
    name = "llama3"

    def __init__(self) -> None:
        self._pythonic = Pythonic()

    def start(self, text: str) -> int:
        if _CALL_BEGINS.match(text) or self._pythonic.start(text) == 0:
            return 0
        found = [position for position in (text.find(TAG), text.find(FUNCTION)) if position >= 0]
        return min(found, default=len(text))

    def settled(self, text: str) -> int:
        if text.lstrip()[:1] in ("", "{", "["):  # all of it may turn out to be a call
            return 0
        return min(self.start(text), before_marker(text, TAG), before_marker(text, FUNCTION))

    def read(self, text: str) -> tuple[str, tuple[ToolCall | ParseError, ...]]:
        if self._pythonic.start(text) == 0:
            return self._pythonic.read(text)
        begin = self.start(text)
        if begin == len(text):
            return text.strip(), ()
        content, body = text[:begin].strip(), text[begin:]
        if body.startswith(FUNCTION):
            attempts = _functions(body)
        elif body.startswith(TAG) and self._pythonic.start(body[len(TAG) :]) == 0:
            attempts = self._pythonic.read(body[len(TAG) :])[1]
        else:
            attempts = _objects(body.removeprefix(TAG))
        unread = any(isinstance(attempt, ParseError) for attempt in attempts)
        return text.strip() if unread else content, attempts

    def spell(self, calls: tuple[ToolCall, ...], *, after_text: bool) -> str:
        spelled = (
            json.dumps({"name": call.name, "parameters": call.arguments}, ensure_ascii=False)
            for call in calls
        )
        return (TAG if after_text else "") + "; ".join(spelled)


def _objects(text: str) -> tuple[ToolCall | ParseError, ...]:
    """Calls as JSON objects one after another, separated by blanks, commas or semicolons."""
    attempts: list[ToolCall | ParseError] = []
    cursor = skip_blank(text, 0)
    while cursor < len(text):
        try:
            value, end = decode_value(text, cursor)
        except Malformed as error:
            attempts.append(ParseError(error.kind, error.detail))
            break
        try:
            attempts.append(call_from(value, "parameters"))
        except Malformed as error:
            attempts.append(ParseError(error.kind, error.detail))
        cursor = skip_blank(text, end)
        if cursor < len(text) and text[cursor] in ";,":
            cursor = skip_blank(text, cursor + 1)
    return tuple(attempts)


def _functions(text: str) -> tuple[ToolCall | ParseError, ...]:
    """Calls as `<function=f>{...}</function>`."""
    attempts: list[ToolCall | ParseError] = []
    begin = 0
    while begin >= 0:
        end = begin + len(FUNCTION)
        try:
            call, end = _function(text, end)
            attempts.append(call)
        except Malformed as error:
            attempts.append(ParseError(error.kind, error.detail))
        begin = text.find(FUNCTION, end)
    return tuple(attempts)


def _function(text: str, start: int) -> tuple[ToolCall, int]:
    closes = text.find(">", start, start + 200)
    name = text[start:closes].strip()
    if closes < 0 or not name:
        raise Malformed("missing_name", f"{FUNCTION}NAME> expected")
    value, end = decode_value(text, closes + 1)
    arguments = decode_arguments(value)
    end = skip_blank(text, end)
    if not text.startswith(END, end):
        raise Malformed("unclosed_call", f"{END} is missing")
    return ToolCall(name=name, arguments=arguments), end + len(END)
