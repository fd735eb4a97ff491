"""The tools as the model reads them: names, docstrings, parameters."""

from __future__ import annotations

import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from renshu.check.findings import Finding, found
from renshu.envs.environment import Environment
from renshu.tools import ToolSpec
from renshu.tools.schema import read_docstring

LONGEST_NAME = 64  # what OpenAI's API takes
LONGEST_DOCSTRING = 1024
PLACEHOLDERS = frozenset({"todo", "fixme", "tbd", "description", "docstring", "", "tool", "xxx"})


def check_tools(tools: Sequence[ToolSpec]) -> Iterator[Finding]:
    """Everything about the tools that can be read off them, without a call."""
    yield from _names([spec.name for spec in tools])
    for spec in tools:
        yield from _documentation(spec)
        yield from _parameters(spec)


def _names(names: Sequence[str]) -> Iterator[Finding]:
    for name, count in Counter(names).items():
        if count > 1:
            yield found("tool_name_collision", f"tool {name}", f"{count} tools have this name")
        if len(name) > LONGEST_NAME:
            yield found("tool_name_long", f"tool {name}", f"the name has {len(name)} characters")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            yield found("tool_name_form", f"tool {name}", "other servers refuse such a name")
        if name in vars(Environment):
            yield found("tool_shadows", f"tool {name}", f"it takes the place of Environment.{name}")
    alike = defaultdict(set)
    for name in names:
        alike[name.replace("_", "").casefold()].add(name)
    for group in alike.values():
        if len(group) > 1:
            yield found("tool_names_alike", f"tools {', '.join(sorted(group))}", "the names hardly differ")


def _documentation(spec: ToolSpec) -> Iterator[Finding]:
    text = spec.description.strip()
    where = f"tool {spec.name}"
    if not text:
        yield found("no_docstring", where, "there is no docstring")
        return
    plain = text.casefold().strip(" .:…")
    if plain.replace("_", "") == spec.name.replace("_", "").casefold() or plain in PLACEHOLDERS:
        yield found("docstring_thin", where, f"the docstring only says {text!r}")
    if len(text) > LONGEST_DOCSTRING:
        yield found("docstring_long", where, f"the docstring has {len(text)} characters")


def _parameters(spec: ToolSpec) -> Iterator[Finding]:
    properties = spec.schema["function"]["parameters"].get("properties", {})
    _, described = read_docstring(inspect.getdoc(spec.function) or "")
    for name in described:
        if name not in properties:
            yield found(
                "docstring_stranger",
                f"tool {spec.name}",
                f"the docstring describes {name!r}; the parameters are {', '.join(properties) or 'none'}",
            )
    bare = [name for name, kind in properties.items() if not kind.get("description")]
    if bare:
        yield found("parameter_undescribed", f"tool {spec.name}", f"no description of {', '.join(bare)}")
