"""Dialogues in a file of JSON lines, in OpenAI's shape: read leniently, as users have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from renshu.chat import ChatFormat
from renshu.envs import Environment
from renshu.errors import DataError, TemplateError
from renshu.jsonl import parse_json, user_lines
from renshu.tools import ToolSpec
from renshu.tools.kinds import Mismatch
from renshu.types import Message, Row, ToolCall

TOLD, LONGEST = 12, 160  # reasons in one sentence, and characters of each
ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Dialogues:
    """Messages with the tools they were written for. set_aside: lines that could not be read, by reason."""

    items: Sequence[tuple[Sequence[Message], Sequence[Mapping[str, Any]]]]
    set_aside: Mapping[str, int] = field(default_factory=dict)


def reasons(set_aside: Mapping[str, int]) -> str:
    """`not JSON: 2, no assistant turn: 1`; of very many, or very long ones, the beginning."""
    told = [f"{_short(reason)}: {count}" for reason, count in set_aside.items()][:TOLD]
    more = len(set_aside) - len(told)
    return ", ".join([*told, *([f"and {more} other reasons"] if more else [])])


def _short(reason: str) -> str:
    return reason if len(reason) <= LONGEST else f"{reason[:LONGEST]}…"


def rows_of(dialogues: Dialogues, chat: ChatFormat) -> list[Row]:
    """The rows of all dialogues, in order: one for each path that an episode with these messages would have.

    Raises DataError or TemplateError naming the dialogue that cannot be written.
    """
    rows: list[Row] = []
    for number, (messages, tools) in enumerate(dialogues.items, start=1):
        try:
            rows += chat.supervised_rows(messages, tools)
        except (DataError, TemplateError) as error:
            raise type(error)(f"dialogue {number}: {error}") from error
    return rows


def read_dialogues(path: Path) -> Dialogues:
    """Dialogues `{"messages": [...], "tools": [...]}` in OpenAI's shape, one a line.

    A line that cannot be read is set aside and counted. Raises DataError if no line can be read.
    """
    items = []
    set_aside: Counter[str] = Counter()
    for line in user_lines(path):
        try:
            row = parse_json(line)
            if not isinstance(row, dict) or not isinstance(row.get("messages", []), list):
                raise ValueError("no object with a list of messages")
            messages = [read_message(message) for message in row["messages"]]
            if not any(message.role == "assistant" for message in messages):
                raise ValueError("no assistant turn")
            items.append((messages, read_schemas(row.get("tools"))))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            set_aside[f"no key {error}" if isinstance(error, KeyError) else str(error)] += 1
    if not items:
        why = reasons(set_aside) or "the file is empty"
        raise DataError(
            f"data: {path} holds no dialogue ({why}); expected one JSON object with `messages` a line"
        )
    return Dialogues(items, set_aside)


def dialogues_of_log(path: Path, environment: type[Environment]) -> Dialogues:
    """The dialogues of a file that could have happened in `environment`, with its system prompt and tools.

    The others are set aside: a tool it does not have, arguments that do not fit, a call without its answer,
    a dialogue that does not end with the assistant. Raises DataError if none is left.
    """
    read = read_dialogues(path)
    made = environment()
    tools = {spec.name: spec for spec in made.tools()}
    schemas = [spec.schema for spec in tools.values()]
    system = [Message("system", made.system)] if made.system else []
    items: list[tuple[Sequence[Message], Sequence[Mapping[str, Any]]]] = []
    set_aside = Counter(read.set_aside)
    for messages, _ in read.items:
        spoken = [message for message in messages if message.role != "system"]
        if why := _misfit(spoken, tools):
            set_aside[why] += 1
        else:
            items.append(([*system, *spoken], schemas))
    if not items:
        raise DataError(f"{path} holds no dialogue that fits {environment.__name__} ({reasons(set_aside)})")
    return Dialogues(items, set_aside)


def _misfit(messages: Sequence[Message], tools: Mapping[str, ToolSpec]) -> str | None:
    """Why a dialogue could not have happened with these tools, or None."""
    if not messages or messages[0].role != "user":
        return "does not begin with the user"
    if messages[-1].role == "user":
        return "ends with the user"
    unanswered = 0
    for message in messages:
        if message.role == "tool":
            unanswered -= 1
            if unanswered < 0:
                return "an answer without its call"
            continue
        if unanswered:
            return "a call without its answer"
        for call in message.tool_calls:
            if call.name not in tools:
                return f"no tool {call.name!r}"
            try:
                tools[call.name].definition.arguments.convert(call.arguments, "")
            except Mismatch as error:
                return f"{call.name}: {error}"
        unanswered = len(message.tool_calls)
    return "a call without its answer" if unanswered else None


def read_schemas(value: Any) -> list[Mapping[str, Any]]:
    """Tool schemas of a row: a list, or JSON text that holds one; blank is none. Raises ValueError."""
    if isinstance(value, str):
        try:
            value = parse_json(value) if value.strip() else None
        except ValueError:
            raise ValueError("tools that are not JSON") from None
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ValueError("tools that are no list of objects")
    return value


def _text(data: Mapping[str, Any], *keys: str) -> str | None:
    """The first of the keys that says something. Raises ValueError if that is no text."""
    value = next((data[key] for key in keys if data.get(key) is not None), None)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{keys[0]} that is a {type(value).__name__}")
    return value


def read_message(data: Any) -> Message:
    """A message in OpenAI's shape. Raises ValueError, TypeError or KeyError for what is none."""
    if not isinstance(data, dict):
        raise ValueError("a message that is no object")
    role = data["role"]
    if role not in ROLES:
        raise ValueError(f"unknown role {role!r}")
    return Message(
        role=role,
        content=_text(data, "content") or "",
        reasoning=_text(data, "reasoning", "reasoning_content") or None,
        tool_calls=tuple(_call(call) for call in data.get("tool_calls") or ()),
        tool_call_id=_text(data, "tool_call_id"),
        name=_text(data, "name"),
    )


def _call(data: Mapping[str, Any]) -> ToolCall:
    function = data.get("function", data)
    arguments, name = function["arguments"], function["name"]
    if isinstance(arguments, str):
        arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        raise ValueError("arguments that are no object")
    if not isinstance(name, str) or not name:
        raise ValueError("a call without a name")
    return ToolCall(name, arguments, _text(data, "id") or "")
