"""Dialogues in OpenAI's shape ↔ messages.

Read strictly: what a conversation cannot be (a tool's answer without its call, a call that nobody answered)
is refused, since a template would render it without a word.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from renshu.chat.arguments import Malformed, decode_arguments
from renshu.errors import DataError
from renshu.types import Message, ToolCall

ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(value: object) -> list[Message]:
    """The messages of a request, `[{"role": ..., "content": ...}, ...]`; Messages are taken as they are.

    `developer` is read as `system`, a list of text parts as their text. Raises DataError naming the place.
    """
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or not value:
        raise DataError("messages: expected a list with at least one message")
    messages = [
        item if isinstance(item, Message) else _message(item, f"messages[{number}]")
        for number, item in enumerate(value)
    ]
    _require_answers(messages)
    if messages[-1].role == "assistant":
        raise DataError(
            f"messages[{len(messages) - 1}]: the last message is the assistant's own; add a reply"
        )
    return messages


def read_tools(value: object) -> list[dict[str, Any]]:
    """Tool schemas, `[{"type": "function", "function": {"name": ...}}]`. Raises DataError."""
    if value is None:
        return []
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise DataError("tools: expected a list")
    tools = [_tool(item, f"tools[{number}]") for number, item in enumerate(value)]
    names = Counter(tool["function"]["name"] for tool in tools)
    if len(names) < len(tools):
        raise DataError(f"tools: the name {_short(names.most_common(1)[0][0])} occurs twice")
    return tools


def as_in_training(messages: Sequence[Message]) -> list[Message]:
    """The same dialogue as an episode has it: no ids, answers of tools in the order of the calls, each with
    the name of its tool.
    """
    result: list[Message] = []
    names: dict[str, str] = {}
    places: dict[str, int] = {}
    for message in messages:
        if message.role == "assistant":
            names = {call.id: call.name for call in message.tool_calls}
            places = {call.id: len(result) + 1 + n for n, call in enumerate(message.tool_calls)}
            calls = tuple(replace(call, id="") for call in message.tool_calls)
            result.append(replace(message, tool_calls=calls, name=None))
        elif message.role == "tool" and message.tool_call_id:
            place = places[message.tool_call_id]
            result[len(result) :] = [message] * (place + 1 - len(result))  # room for answers still to come
            result[place] = Message("tool", message.content, name=names[message.tool_call_id])
        else:
            result.append(replace(message, name=message.name if message.role == "tool" else None))
    return result


def with_ids(message: Message) -> Message:
    """The message with an id for each call, by which its answer will name it."""
    calls = tuple(replace(call, id=f"call_{uuid4().hex[:24]}") for call in message.tool_calls)
    return replace(message, tool_calls=calls)


def write_message(message: Message) -> dict[str, Any]:
    """A message in OpenAI's shape, its thought as `reasoning_content`; `read_messages` reads it back."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        record["reasoning_content"] = message.reasoning
    if message.tool_calls:
        record["content"] = message.content or None
        record["tool_calls"] = [write_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        record["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        record["name"] = message.name
    return record


def write_call(call: ToolCall) -> dict[str, Any]:
    """A call in OpenAI's shape: its arguments are JSON text."""
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _message(value: object, where: str) -> Message:
    item = _object(value, where)
    role = item.get("role")
    if role not in ROLES:
        raise DataError(f"{where}.role: {_short(role)} is none of {', '.join(ROLES)}")
    calls = _list(item.get("tool_calls"), f"{where}.tool_calls")
    if calls and role != "assistant":
        raise DataError(f"{where}.tool_calls: only the assistant calls tools, not a message of {role}")
    if role == "tool" and not _text(item, "tool_call_id", where):
        raise DataError(f"{where}: a tool's answer needs the tool_call_id of the call it answers")
    if item.get("content") is None and role != "assistant":
        raise DataError(f"{where}.content is missing: expected text")
    return Message(
        role="system" if role == "developer" else role,
        content=_content(item.get("content"), f"{where}.content"),
        reasoning=_text(item, "reasoning_content", where) or _text(item, "reasoning", where),
        tool_calls=tuple(_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)),
        tool_call_id=_text(item, "tool_call_id", where) if role == "tool" else None,
        name=_text(item, "name", where),
    )


def _content(value: object, where: str) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for number, item in enumerate(_list(value, where)):
        part = _object(item, f"{where}[{number}]")
        if part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise DataError(
                f"{where}[{number}]: only parts of type text are read, not {_short(part.get('type'))}"
            )
        texts.append(part["text"])
    return "".join(texts)


def _call(value: object, where: str) -> ToolCall:
    item = _object(value, where)
    if item.get("type", "function") != "function":
        raise DataError(f"{where}.type: expected function, not {_short(item.get('type'))}")
    function = _object(item.get("function"), f"{where}.function")
    name, given = function.get("name"), function.get("arguments")
    identity = _text(item, "id", where)
    if not isinstance(name, str) or not name or not identity:
        raise DataError(f"{where}: a call needs an id and function.name")
    if not isinstance(given, str):
        raise DataError(f"{where}.function.arguments: expected JSON text, not {_short(given)}")
    try:
        return ToolCall(name, decode_arguments(given), identity)
    except Malformed as error:
        raise DataError(f"{where}.function.arguments: {error.detail}") from None


def _tool(value: object, where: str) -> dict[str, Any]:
    item = _object(value, where)
    if item.get("type") != "function":
        raise DataError(f"{where}.type: expected function, not {_short(item.get('type'))}")
    function = _object(item.get("function"), f"{where}.function")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise DataError(f"{where}.function.name: expected the name of the tool")
    if not isinstance(function.get("description") or "", str):
        raise DataError(f"{where}.function.description: expected text")
    parameters = function.get("parameters")
    if parameters is not None:
        _object(parameters, f"{where}.function.parameters")
    empty = {"type": "object", "properties": {}}
    shown = {
        "name": name,
        "description": function.get("description") or "",
        "parameters": parameters or empty,
    }
    return {"type": "function", "function": shown}


def _require_answers(messages: Sequence[Message]) -> None:
    """Every call is answered once, before anybody else speaks, and every answer belongs to a call."""
    open_calls: dict[str, None] = {}  # in order
    for number, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id is None:  # of an episode: these have no ids
                continue
            if message.tool_call_id not in open_calls:
                raise DataError(
                    f"messages[{number}].tool_call_id: {_short(message.tool_call_id)} is no call of the "
                    "assistant's turn before it that waits for an answer"
                )
            del open_calls[message.tool_call_id]
            continue
        if open_calls:
            raise DataError(
                f"messages[{number}]: the call {_short(next(iter(open_calls)))} has no answer yet"
            )
        ids = [call.id for call in message.tool_calls if call.id]
        open_calls = dict.fromkeys(ids)
        if len(open_calls) < len(ids):
            raise DataError(f"messages[{number}].tool_calls: two calls have the same id")
    if open_calls:
        raise DataError(f"messages: the call {_short(next(iter(open_calls)))} has no answer yet")


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: expected an object, not {_short(value)}")
    return value


def _list(value: object, where: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise DataError(f"{where}: expected a list, not {_short(value)}")
    return value


def _text(item: Mapping[str, Any], key: str, where: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise DataError(f"{where}.{key}: expected text, not {_short(value)}")
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
