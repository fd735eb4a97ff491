"""JSON values as Python values: for each type its schema and its conversion.

Exact: an integer is not a float (`3.0` is refused for `int`, `3` is welcome for `float`), a boolean is not
an integer, enumerations are case-sensitive, dates are written `YYYY-MM-DD`. What scores a call and what
executes it is the same check.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

Schema = dict[str, Any]


class Mismatch(ValueError):
    """A JSON value that does not fit the type; its text is for the model."""


@dataclass(frozen=True)
class Kind:
    """A type: its JSON schema, and the conversion of a JSON value. `convert(value, where)` raises
    Mismatch.
    """

    schema: Schema
    convert: Callable[[Any, str], Any]


@dataclass(frozen=True)
class Field:
    """A named member of an object. `default` is written into the schema if it is plain JSON."""

    kind: Kind
    required: bool
    description: str = ""
    default: Any = None


def object_kind(fields: Mapping[str, Field], build: Callable[[dict[str, Any]], Any]) -> Kind:
    """An object with these members and no others; `build` makes the Python value from the converted
    members.
    """
    properties = {name: _property(field) for name, field in fields.items()}
    required = [name for name, field in fields.items() if field.required]
    schema: Schema = {"type": "object", "properties": properties, "required": required}

    def convert(value: Any, where: str) -> Any:
        expect(isinstance(value, dict), where, "an object", value)
        at = f"{where}: " if where else ""
        wrong = [
            f"{at}unknown argument {name!r}; known: {_names(fields)}" for name in value if name not in fields
        ]
        wrong += [f"{at}missing argument {name!r}" for name in required if name not in value]
        members = {}
        for name, member in value.items():
            try:
                if name in fields:
                    members[name] = fields[name].kind.convert(member, f"{where}.{name}" if where else name)
            except Mismatch as error:
                wrong.append(str(error))
        if wrong:
            raise Mismatch("; ".join(wrong))
        try:
            return build(members)
        except Exception as error:  # the class itself refuses them, say in its __post_init__
            raise Mismatch(f"{at}{error or type(error).__name__}") from error

    return Kind(schema, convert)


def _property(field: Field) -> Schema:
    schema = dict(field.kind.schema)
    if field.description:
        schema["description"] = field.description
    if not field.required and type(field.default) in (str, int, float, bool):
        schema["default"] = field.default
    return schema


def _names(fields: Mapping[str, Field]) -> str:
    return ", ".join(fields) or "none"


def expect(fits: bool, where: str, wanted: str, value: Any) -> None:
    if not fits:
        raise Mismatch(f"{where or 'arguments'}: expected {wanted}, got {value!r:.60}")


def _plain(
    schema: Schema, wanted: str, fits: Callable[[Any], bool], make: Callable[[Any], Any] = lambda v: v
) -> Kind:
    def convert(value: Any, where: str) -> Any:
        expect(fits(value), where, wanted, value)
        return make(value)

    return Kind(schema, convert)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold: an integer of 400 digits is none."""
    try:
        return (_is_int(value) or isinstance(value, float)) and math.isfinite(value)
    except OverflowError:
        return False


def _is_date(value: Any) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_moment(value: Any) -> bool:
    try:
        return isinstance(value, str) and "T" in value and datetime.fromisoformat(value) is not None
    except ValueError:
        return False


PLAIN: dict[Any, Kind] = {
    str: _plain({"type": "string"}, "a string", lambda value: isinstance(value, str)),
    int: _plain({"type": "integer"}, "an integer", _is_int),
    float: _plain({"type": "number"}, "a number", _is_number, float),
    bool: _plain({"type": "boolean"}, "true or false", lambda value: isinstance(value, bool)),
    types.NoneType: _plain({"type": "null"}, "null", lambda value: value is None),
    date: _plain({"type": "string", "format": "date"}, "a date (YYYY-MM-DD)", _is_date, date.fromisoformat),
    datetime: _plain(
        {"type": "string", "format": "date-time"},
        "a date and time (YYYY-MM-DDTHH:MM:SS)",
        _is_moment,
        datetime.fromisoformat,
    ),
    Any: Kind({}, lambda value, where: value),
}


def one_of(values: Mapping[Any, Any]) -> Kind:
    """An enumeration: the JSON values, and what each stands for. Compared with their type, so that `True`
    is not 1.
    """
    names = {str: "string", int: "integer", float: "number", bool: "boolean"}
    kinds = {names.get(type(value)) for value in values}
    typed: Schema = {"type": kinds.pop()} if len(kinds) == 1 and None not in kinds else {}

    def convert(value: Any, where: str) -> Any:
        for option, meaning in values.items():
            if type(option) is type(value) and option == value:
                return meaning
        options = ", ".join(map(repr, values))
        raise Mismatch(f"{where}: expected one of {options}, got {value!r:.60}")

    return Kind({**typed, "enum": list(values)}, convert)


def union(members: Sequence[Kind]) -> Kind:
    """The first member that fits, in the order of the hint."""

    def convert(value: Any, where: str) -> Any:
        reasons = []
        for member in members:
            try:
                return member.convert(value, where)
            except Mismatch as error:
                reasons.append(str(error))
        raise Mismatch(" or ".join(dict.fromkeys(reasons)))

    if all(set(member.schema) == {"type"} for member in members):
        return Kind({"type": [member.schema["type"] for member in members]}, convert)
    return Kind({"anyOf": [member.schema for member in members]}, convert)
