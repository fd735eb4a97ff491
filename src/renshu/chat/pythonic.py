"""Calls of Llama 3.2's small models: the whole message is `[f(a='x'), g(n=2*3)]`.

Read with `ast.parse`; nothing is ever evaluated. Values are literals, lists, dicts and arithmetic on numbers;
anything else is a `decode_error`. A single dict given by position stands for the keyword arguments.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from typing import Any

from renshu.chat.arguments import Malformed
from renshu.chat.reply import ParseError
from renshu.types import ToolCall

_BEGINS = re.compile(r"\s*\[\s*[A-Za-z_][\w.]*\(")  # no quantifier meets another: linear in the text
MAX_BITS = 4096  # of an integer that arithmetic makes: a longer one takes long and cannot be written down
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Pythonic:
    name = "pythonic"

    def start(self, text: str) -> int:
        return 0 if _BEGINS.match(text) else len(text)

    def settled(self, text: str) -> int:
        return 0 if text.lstrip()[:1] in ("", "[") else len(text)

    def read(self, text: str) -> tuple[str, tuple[ToolCall | ParseError, ...]]:
        if not _BEGINS.match(text):
            return text.strip(), ()
        source = text.strip()
        if not source.endswith("]"):
            return source, (ParseError("truncated_arguments", "the list of calls is not closed with ]"),)
        try:
            tree = ast.parse(source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return source, (ParseError("decode_error", f"not a list of calls: {error}"),)
        if not isinstance(tree, ast.List):
            return source, (ParseError("decode_error", "not a list of calls"),)
        attempts = tuple(_attempt(node) for node in tree.elts)
        unread = any(isinstance(attempt, ParseError) for attempt in attempts)
        return source if unread else "", attempts

    def spell(self, calls: tuple[ToolCall, ...], *, after_text: bool) -> str:
        del after_text
        spelled = (
            f"{call.name}({', '.join(f'{key}={value!r}' for key, value in call.arguments.items())})"
            for call in calls
        )
        return f"[{', '.join(spelled)}]"


def _attempt(node: ast.expr) -> ToolCall | ParseError:
    try:
        return _call(node)
    except Malformed as error:
        return ParseError(error.kind, error.detail)
    except RecursionError:
        return ParseError("decode_error", "nested too deeply")


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call):
        raise Malformed("decode_error", f"{ast.unparse(node)[:60]!r} is not a call")
    name = _name(node.func)
    if any(keyword.arg is None for keyword in node.keywords):
        raise Malformed("decode_error", f"{name}: ** is not allowed")
    arguments: dict[str, Any] = {}
    if node.args:
        if node.keywords or len(node.args) > 1 or not isinstance(node.args[0], ast.Dict):
            raise Malformed("decode_error", f"{name}: arguments must be given by name")
        arguments = _value(node.args[0], name)
    for keyword in node.keywords:
        if keyword.arg in arguments:
            raise Malformed("duplicate_key", f"{name}: {keyword.arg} is given twice")
        arguments[str(keyword.arg)] = _value(keyword.value, f"{name}: {keyword.arg}")
    return ToolCall(name=name, arguments=arguments)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    raise Malformed("decode_error", "only a plain name can be called")


def _value(node: ast.expr, where: str) -> Any:
    """The value of a literal expression, as JSON would hold it. Raises Malformed on anything else."""
    match node:
        case ast.Constant(value=str() as value):
            return _character(value, where)
        case ast.Constant(value=int() | None as value):
            return value
        case ast.Constant(value=float() as value):
            return _finite(value, where)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item, where) for item in items]
        case ast.Dict(keys=keys, values=values):
            return _mapping(keys, values, where)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_number(operand, where)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            try:
                return _finite(_OPERATORS[type(sign)](_number(left, where), _number(right, where)), where)
            except ArithmeticError as error:
                raise Malformed("decode_error", f"{where}: {error}") from error
    raise Malformed("decode_error", f"{where} is not a literal value")


def _mapping(keys: list[ast.expr | None], values: list[ast.expr], where: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise Malformed("decode_error", f"{where}: keys must be strings")
        if key.value in result:
            raise Malformed("duplicate_key", f"{where}: the key {key.value!r} is given twice")
        result[_character(key.value, where)] = _value(value, where)
    return result


def _character(text: str, where: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise Malformed("decode_error", f"{where}: half of a surrogate pair: not a character")
    return text


def _number(node: ast.expr, where: str) -> int | float:
    value = _value(node, where)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Malformed("decode_error", f"{where}: arithmetic is allowed on numbers only")
    return value


def _finite(number: int | float, where: str) -> int | float:
    if isinstance(number, float) and not math.isfinite(number):
        raise Malformed("non_finite", f"{where} is not a finite number")
    if isinstance(number, int) and number.bit_length() > MAX_BITS:
        raise Malformed("decode_error", f"{where} is a number of too many digits")
    return number
