"""The guide to recipes has every key with its true default and choices, and its examples are recipes."""

import re
import shlex
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import pytest

from renshu.config import StrictModel, apply_overrides
from renshu.pipeline.recipe import Recipe, read_recipe

GUIDE = (Path(__file__).parent.parent / "docs/guide-recipes.md").read_text("utf-8")
ROWS = {
    key: (default, text)
    for key, default, text in re.findall(r"^\| `(.+?)` \| (.+?) \| (.+) \|$", GUIDE, re.M)
}
WORDS = {"presets", "model.adapter", "eval.samples"}  # keys that stand for others


def strict_models(hint: Any) -> list[type[StrictModel]]:
    """The models inside a type hint."""
    if isinstance(hint, type) and not isinstance(hint, UnionType) and issubclass(hint, StrictModel):
        return [hint]
    return [model for inner in get_args(hint) for model in strict_models(inner)]


def choices(hint: Any) -> set[str]:
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return {choice for inner in get_args(hint) for choice in choices(inner)}


def keys(model: type[StrictModel], prefix: str = "") -> dict[str, Any]:
    """Every key that a recipe may set, with its field; lists by their first entry."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        inner = strict_models(field.annotation)
        if inner:
            index = ".0" if get_origin(field.annotation) is tuple else ""
            found |= keys(inner[0], f"{prefix}{name}{index}.")
        else:
            found[prefix + (field.alias or name)] = field
    return found


KEYS = keys(Recipe)


def test_every_key_has_its_row_and_no_other():
    assert set(ROWS) - WORDS == set(KEYS)
    assert len(re.findall(r"^\| `", GUIDE, re.M)) == len(ROWS)  # none twice


@pytest.mark.parametrize("key", KEYS)
def test_defaults_and_choices_are_the_true_ones(key):
    default, text = ROWS[key]
    field = KEYS[key]
    if field.is_required() or field.default is None:
        assert default == ("required" if field.is_required() else "–")
    else:
        written = apply_overrides({}, [f"x={default.strip('`')}"])["x"]
        assert (list(field.default) if isinstance(field.default, tuple) else field.default) == written
    assert {
        choice for choice in choices(field.annotation) if f"`{choice}`" not in f"{default} {text}"
    } == set()


def test_examples_are_recipes(tmp_path):
    (example,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.S)
    path = tmp_path / "clerk.yaml"
    path.write_text(example, encoding="utf-8")
    commands = re.findall(r"^renshu train (\S+) ?(.*)$", GUIDE, re.M)
    assert len(commands) == 4
    for name, rest in commands:
        preset = rest.removeprefix("--preset ") if rest.startswith("--preset ") else None
        overrides = [] if preset else shlex.split(rest)
        read_recipe(str(path) if name == "clerk.yaml" else name, overrides, preset=preset)
    assert read_recipe(str(path), preset="quick").stages[1].grpo.steps == 5
    assert read_recipe(str(path)).stages[1].grpo.steps == 40
