"""Type hints → Kinds. Schemas are written without `$ref`: inside a tool's schema they are not the root."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from renshu.errors import ToolDefinitionError
from renshu.tools.kinds import PLAIN, Field, Kind, Mismatch, expect, object_kind, one_of, union


def kind_of(hint: Any, where: str) -> Kind:
    """The Kind of a type hint. Raises ToolDefinitionError naming `where` if the type has no JSON form."""
    return _kind(hint, where, ())


def _kind(hint: Any, where: str, inside: tuple[Any, ...]) -> Kind:
    if hint in inside:
        raise ToolDefinitionError(
            f"{where}: the type {hint.__name__} contains itself, which has no finite schema"
        )
    origin = get_origin(hint)
    if origin is Annotated:
        return _annotated(hint, where, inside)
    if origin is Literal:
        return one_of({value: value for value in get_args(hint)})
    if origin in (Union, types.UnionType):
        return union([_kind(member, where, inside) for member in get_args(hint)])
    if hint in PLAIN:
        return PLAIN[hint]
    if (origin or hint) in (list, Sequence, tuple):
        return _list(hint, where, inside)
    if (origin or hint) in (dict, Mapping):
        return _mapping(hint, where, inside)
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return one_of({member.value: member for member in hint})
        return _record(hint, where, (*inside, hint))
    raise ToolDefinitionError(
        f"{where}: the type {hint!r} has no JSON form; use str, int, float, bool, date, list, ..."
    )


def _list(hint: Any, where: str, inside: tuple[Any, ...]) -> Kind:
    wanted = get_args(hint)
    is_tuple = (get_origin(hint) or hint) is tuple
    if is_tuple and not (len(wanted) == 2 and wanted[1] is ...):
        raise ToolDefinitionError(
            f"{where}: write tuple[T, ...] or list[T]; a tuple of fixed length is no JSON list"
        )
    item = _kind(wanted[0] if wanted else Any, where, inside)

    def convert(value: Any, where: str) -> Any:
        expect(isinstance(value, list), where, "a list", value)
        items = [item.convert(member, f"{where}[{index}]") for index, member in enumerate(value)]
        return tuple(items) if is_tuple else items

    return Kind({"type": "array", "items": item.schema}, convert)


def _mapping(hint: Any, where: str, inside: tuple[Any, ...]) -> Kind:
    key, member = get_args(hint) or (str, Any)
    if key is not str:
        raise ToolDefinitionError(f"{where}: the keys of a JSON object are strings; write dict[str, ...]")
    kind = _kind(member, where, inside)

    def convert(value: Any, where: str) -> Any:
        expect(isinstance(value, dict), where, "an object", value)
        return {name: kind.convert(item, f"{where}.{name}") for name, item in value.items()}

    return Kind({"type": "object", "additionalProperties": kind.schema or True}, convert)


def _annotated(hint: Any, where: str, inside: tuple[Any, ...]) -> Kind:
    inner, *notes = get_args(hint)
    if not all(isinstance(note, str) for note in notes):
        raise ToolDefinitionError(
            f"{where}: of Annotated only a description (text) is understood, not {notes!r}"
        )
    kind = _kind(inner, where, inside)
    return Kind({**kind.schema, "description": " ".join(notes)}, kind.convert)


def _record(owner: type, where: str, inside: tuple[Any, ...]) -> Kind:
    """A dataclass, TypedDict or pydantic model."""
    if dataclasses.is_dataclass(owner):
        hints = get_type_hints(owner, include_extras=True)
        given = [member for member in dataclasses.fields(owner) if member.init]
        fields = {member.name: _dataclass_field(member, hints, where, inside) for member in given}
        return object_kind(fields, lambda members: owner(**members))
    if typing.is_typeddict(owner):
        required: frozenset[str] = getattr(owner, "__required_keys__", frozenset())
        hints = get_type_hints(owner)
        kinds = {name: _kind(hint, f"{where}.{name}", inside) for name, hint in hints.items()}
        return object_kind({name: Field(kind, name in required) for name, kind in kinds.items()}, dict)
    if hasattr(owner, "model_json_schema"):
        return _pydantic(owner, where)
    raise ToolDefinitionError(
        f"{where}: the class {owner.__name__} has no JSON form; use a dataclass, TypedDict or pydantic model"
    )


def _dataclass_field(
    member: dataclasses.Field[Any], hints: Mapping[str, Any], where: str, inside: tuple[Any, ...]
) -> Field:
    required = member.default is dataclasses.MISSING and member.default_factory is dataclasses.MISSING
    default = None if member.default is dataclasses.MISSING else member.default
    return Field(_kind(hints[member.name], f"{where}.{member.name}", inside), required, default=default)


def _pydantic(model: Any, where: str) -> Kind:
    from pydantic import ValidationError

    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})

    def convert(value: Any, where: str) -> Any:
        try:
            return model.model_validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            told = (f"{'.'.join([where, *map(str, item['loc'])])}: {item['msg']}" for item in error.errors())
            raise Mismatch("; ".join(told)) from error

    return Kind(_inlined(schema, definitions, where, ()), convert)


def _inlined(schema: Any, definitions: Mapping[str, Any], where: str, inside: tuple[str, ...]) -> Any:
    """A schema without `$ref`: inside a tool's schema its root would be another."""
    if isinstance(schema, list):
        return [_inlined(item, definitions, where, inside) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name in inside:
            raise ToolDefinitionError(f"{where}: the type {name} contains itself, which has no finite schema")
        return _inlined(definitions[name], definitions, where, (*inside, name))
    return {key: _inlined(item, definitions, where, inside) for key, item in schema.items() if key != "title"}
