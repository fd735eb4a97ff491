"""Settings: strict models, YAML without its traps, overrides and presets.

Everything a user may set is a `StrictModel`. Reading a recipe is `load_yaml`, `apply_preset`,
`apply_overrides`, then `Model.from_dict(data, source=path)`; each step raises `ConfigError` only.
"""

from __future__ import annotations

import copy
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator

from renshu.errors import ConfigError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # it has no public name


class _RaisesConfigError(ModelMetaclass):
    """Turns the `ValidationError` of a direct construction into a `ConfigError`.

    A metaclass, because pydantic builds nested models without calling them: so their errors keep the path.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except ValidationError as error:
            raise ConfigError(describe(error, cls.__name__)) from None


class StrictModel(BaseModel, metaclass=_RaisesConfigError):
    """Base of all settings: frozen, no unknown keys, no NaN, no guessing between numbers and booleans."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str | Path = "") -> Self:
        """Validate `data`. Raises ConfigError that names `source`, the path of each key, what is allowed."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(describe(error, str(source) or cls.__name__)) from None

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if isinstance(data, Mapping):
            known = [field.alias or name for name, field in cls.model_fields.items()]
            problems = [unknown_key(str(key), known) for key in data if key not in known]
            if problems:
                raise ValueError("; ".join(problems))
        return data

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_boolean_traps(cls, value: Any, info: ValidationInfo) -> Any:
        kind = cls.model_fields[info.field_name or ""].annotation
        allowed = {kind, *get_args(kind)}
        if kind is bool and not isinstance(value, bool):
            raise ValueError(f"write true or false, not {value!r}")
        if isinstance(value, bool) and bool not in allowed and allowed & {int, float}:
            raise ValueError(f"expected a number, not {value}")
        return value


def unknown_key(key: str, known: Iterable[str]) -> str:
    """One sentence about an unknown key: the nearest spelling, if one is near, and all known keys."""
    known = list(known)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown key {key!r}{hint}; known keys: {', '.join(known)}"


def describe(error: ValidationError, source: str) -> str:
    """The text of a ConfigError: one line a problem, `source: path.of.key: what is wrong`.

    A list whose entries are wrong is called too short as well, as if it had none of them: that is left out.
    """
    lines = []
    problems = error.errors(include_url=False)
    wrong = {problem["loc"][:end] for problem in problems for end in range(len(problem["loc"]))}
    for problem in problems:
        if problem["type"] == "too_short" and problem["loc"] in wrong:
            continue
        path = ".".join(str(part) for part in problem["loc"])
        text = problem["msg"].removeprefix("Value error, ")
        if problem["type"] not in ("value_error", "missing"):
            text += f", got {problem['input']!r}"
        lines.append(": ".join(part for part in (source, path, text) if part))
    return "\n".join(lines)


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core schema: `2e-4` is a number; `off`, `no`, `on`, `yes`, dates and `010` stay words."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  # PyYAML's own shape

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            key = self.construct_object(key_node)
            if not isinstance(key, str):
                raise ConfigError(f"line {line}: the key {key!r} is not text: put it in quotes")
            if key in seen:
                raise ConfigError(f"line {line}: the key {key!r} occurs twice: remove one")
            seen.add(key)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9_]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _parse_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an integer of thousands of digits
        told = " ".join(str(error).split()).replace(' in "<unicode string>", line', " at line")
        raise ConfigError(f"{source}: not readable as YAML: {told}") from None
    except RecursionError:
        raise ConfigError(f"{source}: not readable as YAML: nested too deeply") from None


def read_yaml(path: str | Path) -> Any:
    """What is in a YAML file. Raises ConfigError: no such file, not YAML, a key twice."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return _parse_yaml(text, str(path))


def load_yaml(path: str | Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError as `read_yaml` does, and if it is not a mapping."""
    data = read_yaml(path)
    if not isinstance(data, dict):
        what = "is empty" if data is None else f"holds a {type(data).__name__}"
        raise ConfigError(f"{path}: {what}; expected settings like `seed: 0`")
    return data


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Settings as YAML, in their order; `load_yaml` reads the same."""
    return yaml.safe_dump(dict(data), sort_keys=False, allow_unicode=True, width=110)


def apply_overrides(data: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of `data` with each `path.to.key=value` set; values are read as YAML.

    Numbers in a path index lists. Raises ConfigError for text without `=`, or for a path through something
    that is neither mapping nor list.
    """
    result: dict[str, Any] = copy.deepcopy(dict(data))
    for override in overrides:
        path, equals, text = override.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"override {override!r}: write it as key=value, e.g. stages.0.sft.epochs=3")
        _set(result, path.strip(), _parse_yaml(text, f"override {override!r}"))
    return result


def apply_preset(data: Mapping[str, Any], name: str | None) -> dict[str, Any]:
    """A copy of `data` without its `presets`, the dotted keys of the preset `name` (None: of none) set.

    Raises ConfigError if there is no such preset.
    """
    result: dict[str, Any] = copy.deepcopy(dict(data))
    presets = result.pop("presets", None) or {}
    if not isinstance(presets, dict) or not all(isinstance(preset, dict) for preset in presets.values()):
        raise ConfigError("presets: expected a mapping of names to settings, e.g. `gpu: {model.name: …}`")
    if name is None:
        return result
    if name not in presets:
        raise ConfigError(f"no preset {name!r}; this recipe has: {', '.join(presets) or 'none'}")
    for path, value in presets[name].items():
        _set(result, path, value)
    return result


def _set(data: dict[str, Any], path: str, value: Any) -> None:
    """Set a dotted `path` in place; mappings that are missing are made."""
    *parents, last = path.split(".")
    holder: Any = data
    for depth, key in enumerate(parents):
        where = ".".join(parents[: depth + 1])
        holder = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[_index(holder, key, path)]
        if not isinstance(holder, dict | list):
            raise ConfigError(f"{path}: {where} is {holder!r}, which has no keys")
    if isinstance(holder, dict):
        holder[last] = value
    else:
        holder[_index(holder, last, path)] = value


def _index(items: list[Any], key: str, path: str) -> int:
    if not key.isdecimal() or int(key) >= len(items):
        raise ConfigError(f"{path}: {key!r} is not one of 0 … {len(items) - 1} of that list")
    return int(key)
