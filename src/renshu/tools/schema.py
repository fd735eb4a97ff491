"""A function's signature and docstring → what the model reads about it, and the check of what the model
sends.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_type_hints

from renshu.errors import ToolDefinitionError
from renshu.tools.hints import kind_of
from renshu.tools.kinds import Field, Kind, Schema, object_kind

_SECTIONS = (
    "args|arguments|parameters|参数|參數|引數|"
    "returns?|yields?|raises|examples?|notes?|返回|异常|回傳|傳回|例外"
)
_SECTION = re.compile(rf"^\s*({_SECTIONS})\s*[:：]\s*$", re.IGNORECASE)
_ARGUMENTS = {"args", "arguments", "parameters", "参数", "參數", "引數"}
_ENTRY = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\)|（[^）]*）)?\s*[:：]\s*(.*)$")


@dataclass(frozen=True)
class Definition:
    """What a tool is: `schema` in OpenAI's form, `arguments` converts a dict of JSON values to keyword
    arguments.
    """

    name: str
    description: str
    schema: Schema
    arguments: Kind


@lru_cache(maxsize=1024)
def define(function: Callable[..., Any], bound: bool) -> Definition:
    """The definition of a plain function; `bound`: its first parameter is `self`.

    Raises ToolDefinitionError naming the parameter that has no type hint, or whose type has no JSON form.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise ToolDefinitionError(f"{function!r} cannot be a tool: a tool needs a name; write a def")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ToolDefinitionError(f"tool {name}: a type hint cannot be resolved: {error}") from error
    description, about = read_docstring(inspect.getdoc(function) or "")
    parameters = list(inspect.signature(function).parameters.values())[1 if bound else 0 :]
    fields = {parameter.name: _field(name, parameter, hints, about) for parameter in parameters}
    arguments = object_kind(fields, dict)
    inner = {"name": name, "description": description, "parameters": arguments.schema}
    return Definition(name, description, {"type": "function", "function": inner}, arguments)


def _field(tool: str, parameter: inspect.Parameter, hints: dict[str, Any], about: dict[str, str]) -> Field:
    where = f"tool {tool}, parameter {parameter.name}"
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolDefinitionError(f"{where}: only parameters that can be given by name can be a tool's")
    if parameter.name not in hints:
        raise ToolDefinitionError(
            f"{where}: no type hint, so the model cannot know what to send; write {parameter.name}: str"
        )
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    return Field(kind_of(hints[parameter.name], where), required, about.get(parameter.name, ""), default)


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """A Google docstring → its description (up to the first section) and what it says about each
    parameter.
    """
    description: list[str] = []
    about: dict[str, str] = {}
    section, current, depth = "", "", 0
    for line in text.splitlines():
        if heading := _SECTION.match(line):
            section, current = heading[1].lower(), ""
        elif not section:
            description.append(line)
        elif section in _ARGUMENTS and line.strip():
            indent = len(line) - len(line.lstrip())
            entry = _ENTRY.match(line)
            if entry and (not current or indent <= depth):
                current, depth = entry[1], indent
                about[current] = entry[2].strip()
            elif current:
                about[current] = f"{about[current]} {line.strip()}".strip()
    return "\n".join(description).strip(), about
