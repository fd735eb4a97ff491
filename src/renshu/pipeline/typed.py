"""What a person types in the place of a model: a call of a tool, a thought, or an answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from renshu.chat import Reply
from renshu.envs import think
from renshu.envs.moves import Think
from renshu.errors import DataError
from renshu.tools import ToolSpec
from renshu.types import ToolCall

# `key=value` up to the next key; a value with `=` in it stands in quotes.
_PAIR = re.compile(r"""(\w+)=("(?:[^"\\]|\\.)*"|'[^']*'|.*?)(?=\s+\w+=|\s*$)\s*""", re.DOTALL)
_LIKE_A_CALL = re.compile(r"^(\w+)\s+\w+=")
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}


def read_typed(line: str, tools: Mapping[str, ToolSpec]) -> Reply | Think:
    """A line as a model's reply: `search city=Tokyo`, `search {"city": "Tokyo"}`, OpenAI's JSON of one call
    or a list of calls; `think …` is a thought that goes with the next reply; all else is the answer.

    Whether the arguments fit is left to the tool, which answers as it would answer a model. Raises DataError,
    in a sentence for the person, for what is probably a slip.
    """
    text = line.strip()
    first, _, rest = text.partition(" ")
    if not text:
        raise DataError("type a call or an answer; `help` shows the tools")
    if text[0] in "{[":
        return Reply(attempts=_from_json(text))
    if first in tools:
        return Reply(attempts=(ToolCall(first, _arguments(tools[first], rest.strip())),))
    if first == "think" and rest:
        return think(rest.strip())
    if first == "say" and rest:
        return Reply(rest.strip())
    if likely := _LIKE_A_CALL.match(text):
        known = ", ".join(tools) or "none"
        raise DataError(f"there is no tool {likely[1]!r}; there are: {known}. To answer this: say {text}")
    return Reply(text)


def usage(spec: ToolSpec) -> str:
    """How to type a call: `search city=… [day=…]`; what may be left out stands in brackets."""
    parameters = spec.schema["function"]["parameters"]
    required = parameters.get("required", [])
    words = [f"{name}=…" if name in required else f"[{name}=…]" for name in parameters["properties"]]
    return " ".join([spec.name, *words])


def _arguments(spec: ToolSpec, text: str) -> dict[str, Any]:
    if text.startswith("{"):
        return _object(_load(text), "arguments")
    properties = spec.schema["function"]["parameters"]["properties"]
    arguments: dict[str, Any] = {}
    position = 0
    while position < len(text):
        pair = _PAIR.match(text, position)
        if pair is None:
            raise DataError(f"write a call as: {usage(spec)}. To answer this: say {spec.name} {text}")
        if pair[1] in arguments:
            raise DataError(f"{pair[1]} is given twice")
        arguments[pair[1]] = _value(pair[2], properties.get(pair[1], {}))
        position = pair.end()
    return arguments


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """JSON where the schema takes what it says, else the text itself, without its quotes."""
    wanted = _types(schema)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
    kind = "null" if value is None else _NAMES[type(value)]
    fits = not wanted or kind in wanted or (kind == "integer" and "number" in wanted)
    return value if fits or "string" not in wanted else text


def _types(schema: Mapping[str, Any]) -> set[str]:
    """The JSON types that a schema takes; empty: it does not say."""
    found = schema.get("type", [])
    types = {found} if isinstance(found, str) else set(found)
    return types.union(*(_types(option) for option in schema.get("anyOf", ())))


def _from_json(text: str) -> tuple[ToolCall, ...]:
    value = _load(text)
    calls: Sequence[Any] = value if isinstance(value, list) else [value]
    found = []
    for call in calls:
        call = _object(call, "a call")
        call = _object(call.get("function", call), "function")
        name, arguments = call.get("name"), call.get("arguments", {})
        if isinstance(arguments, str):
            arguments = _load(arguments)
        if not isinstance(name, str) or not name:
            raise DataError('a call is {"name": …, "arguments": {…}}. To answer JSON: say {…}')
        found.append(ToolCall(name, _object(arguments, "arguments")))
    return tuple(found)


def _load(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"that is not JSON ({error}). To answer it: say {text}") from None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DataError(f"{what} must be an object, {{…}}, not {json.dumps(value, ensure_ascii=False)}")
    return value
