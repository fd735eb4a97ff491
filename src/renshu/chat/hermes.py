"""Calls of Hermes and Qwen: `<tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>`, as many as
wanted.
"""

from __future__ import annotations

import json

from renshu.chat.arguments import Malformed, before_marker, call_from, decode_value, skip_blank
from renshu.chat.reply import ParseError
from renshu.types import ToolCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Hermes:
    """The JSON is decoded from the opening tag on, so a tag inside one of its strings is only text."""

    name = "hermes"

    def start(self, text: str) -> int:
        found = text.find(OPEN)
        return len(text) if found < 0 else found

    def settled(self, text: str) -> int:
        return min(self.start(text), before_marker(text, OPEN))

    def read(self, text: str) -> tuple[str, tuple[ToolCall | ParseError, ...]]:
        attempts: list[ToolCall | ParseError] = []
        kept: list[str] = []
        cursor, begin = 0, text.find(OPEN)
        while begin >= 0:
            try:
                call, end = _one(text, begin + len(OPEN))
                attempts.append(call)
                kept.append(text[cursor:begin])
                cursor = end
            except Malformed as error:
                attempts.append(ParseError(error.kind, error.detail))
                end = begin + len(OPEN)
            begin = text.find(OPEN, end)
        kept.append(text[cursor:])
        return "".join(kept).strip(), tuple(attempts)

    def spell(self, calls: tuple[ToolCall, ...], *, after_text: bool) -> str:
        del after_text
        return "\n".join(f"{OPEN}\n{_json(call)}\n{CLOSE}" for call in calls)


def _json(call: ToolCall) -> str:
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)


def _one(text: str, start: int) -> tuple[ToolCall, int]:
    """The call whose JSON begins at `start`, and the position behind its closing tag."""
    begin = skip_blank(text, start)
    if begin == len(text):
        raise Malformed("truncated_arguments", "the turn ended right after <tool_call>")
    if text[begin] != "{":
        raise Malformed(
            "not_an_object", f"expected a JSON object after {OPEN}, found {text[begin : begin + 20]!r}"
        )
    value, end = decode_value(text, begin)
    call = call_from(value)
    end = skip_blank(text, end)
    if end == len(text):
        raise Malformed("unclosed_call", f"{CLOSE} is missing")
    if not text.startswith(CLOSE, end):
        raise Malformed("bad_json", f"expected {CLOSE} after the JSON object, found {text[end : end + 20]!r}")
    return call, end + len(CLOSE)
