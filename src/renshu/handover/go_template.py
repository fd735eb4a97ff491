"""The part of Go's `text/template` that our Ollama templates are written in, rendered as Go does.

So that a template can be compared with the chat template it stands for where there is no Go. Known: text,
`if`, `else`, `range`, `end`, variables, fields, strings, `eq`, `ne`, `json`. Anything else is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from renshu.errors import TemplateError

_ACTION = re.compile(r'\{\{ ((?:"[^"]*"|[^"{}])+) \}\}')
_WORD = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[$.\w]+|:=|=|,)')
_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})

Node = tuple[Any, ...]
Scope = list[dict[str, Any]]  # variables, the innermost block last


def go_json(value: Any) -> str:
    """What Go's `json.Marshal` writes: no blanks, keys in order, no sign that HTML reads as its own."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, Mapping):
        inner = (f"{go_json(str(key))}:{go_json(value[key])}" for key in sorted(value))
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(go_json(entry) for entry in value) + "]"
    return json.dumps(value, ensure_ascii=False).translate(_HTML)


def render(template: str, data: Mapping[str, Any]) -> str:
    """The text of a template for the data of its root. Raises TemplateError for what is not known here."""
    pieces = list(_pieces(template))
    nodes, rest = _block(pieces, 0)
    if rest != len(pieces):
        raise TemplateError(f"Go template: {pieces[rest][1]!r} closes nothing")
    return "".join(_write(nodes, data, [{"$": data}]))


def _pieces(template: str) -> Iterator[tuple[str, str]]:
    """Text and actions in turn. The first two braces open an action, as in Go, also of three."""
    end = 0
    while (start := template.find("{{", end)) >= 0:
        match = _ACTION.match(template, start)
        if match is None:
            raise TemplateError(f"Go template: {template[start : start + 20]!r} is no action")
        yield "text", template[end:start]
        yield "action", match[1]
        end = match.end()
    yield "text", template[end:]


def _block(pieces: Sequence[tuple[str, str]], start: int) -> tuple[list[Node], int]:
    """Nodes up to the `end` or `else` that closes the block, and its place."""
    nodes: list[Node] = []
    at = start
    while at < len(pieces):
        kind, text = pieces[at]
        verb, _, rest = text.partition(" ")
        if kind == "text":
            nodes.append(("text", text))
        elif verb in ("end", "else"):
            return nodes, at
        elif verb in ("if", "range"):
            body, at = _block(pieces, at + 1)
            otherwise: list[Node] = []
            if at < len(pieces) and pieces[at][1] == "else":
                otherwise, at = _block(pieces, at + 1)
            if at == len(pieces) or pieces[at][1] != "end":
                raise TemplateError(f"Go template: {text!r} is not closed by a plain else or end")
            nodes.append((verb, _words(rest), body, otherwise))
        else:
            nodes.append(("action", _words(text)))
        at += 1
    return nodes, at


def _words(text: str) -> list[str]:
    words, at = [], 0
    while at < len(text.rstrip()):
        match = _WORD.match(text, at)
        if match is None:
            raise TemplateError(f"Go template: {text!r} is more than is known here")
        words.append(match[1])
        at = match.end()
    return words


def _write(nodes: Sequence[Node], dot: Any, scope: Scope) -> Iterator[str]:
    for node in nodes:
        if node[0] == "text":
            yield node[1]
        elif node[0] == "action":
            yield _act(node[1], dot, scope)
        elif node[0] == "if":
            chosen = node[2] if _value(node[1], dot, scope) else node[3]
            yield from _write(chosen, dot, [*scope, {}])
        else:
            yield from _range(node, dot, scope)


def _range(node: Node, dot: Any, scope: Scope) -> Iterator[str]:
    """Entries in order, of a map by key."""
    _, words, body, otherwise = node
    names = [word for word in words[: words.index(":=")] if word != ","] if ":=" in words else []
    over = _value(words[words.index(":=") + 1 :] if names else words, dot, scope)
    pairs = [(key, over[key]) for key in sorted(over)] if isinstance(over, Mapping) else enumerate(over or ())
    if not over:
        yield from _write(otherwise, dot, [*scope, {}])
    for key, value in pairs:
        given = dict(zip(names, (key, value) if len(names) == 2 else (value,), strict=False))
        yield from _write(body, value, [*scope, given])


def _act(words: list[str], dot: Any, scope: Scope) -> str:
    if len(words) > 2 and words[1] in (":=", "="):
        value = _value(words[2:], dot, scope)
        holders = [block for block in scope if words[0] in block]
        holder = scope[-1] if words[1] == ":=" else holders[-1]
        holder[words[0]] = value
        return ""
    value = _value(words, dot, scope)
    if not isinstance(value, str):
        raise TemplateError(f"Go template: {' '.join(words)} is no text: {value!r}")
    return value


def _value(words: list[str], dot: Any, scope: Scope) -> Any:
    values = [_operand(word, dot, scope) for word in words[1:]]
    match words[0], values:
        case "eq", [left, right]:
            return left == right
        case "ne", [left, right]:
            return left != right
        case "json", [value]:
            return go_json(value)
        case word, []:
            return _operand(word, dot, scope)
    raise TemplateError(f"Go template: {' '.join(words)!r} is more than is known here")


def _operand(word: str, dot: Any, scope: Scope) -> Any:
    if word.startswith('"'):
        return json.loads(word)
    name, *fields = word.split(".")
    found = dot
    if name:
        holders = [block for block in scope if name in block]
        if not holders:
            raise TemplateError(f"Go template: {word} is not known")
        found = holders[-1][name]
    for field in filter(None, fields):
        found = found.get(field) if isinstance(found, Mapping) else None  # a field that is not there is empty
    return found
