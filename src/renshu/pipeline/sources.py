"""Which files a recipe needs: the environment's own code, the modules beside it, the data they name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renshu.errors import ConfigError
from renshu.pipeline.environments import split_name

LONGEST = 255  # characters of a text that may name a file


@dataclass(frozen=True)
class Sources:
    """Files to pack, by their path below `source/`, and the recipe with its paths as they are there."""

    files: Mapping[str, Path]
    recipe: dict[str, Any]


def sources_of(recipe: Mapping[str, Any], base: Path) -> Sources:
    """What a resolved recipe reads from `base`, its folder. Raises ConfigError for a file that is not there.

    A file outside that folder is packed under its bare name.
    """
    result = deepcopy(dict(recipe))
    files: dict[str, Path] = {}
    base = base.resolve()

    def take(name: str, what: str) -> str:
        path = (base / name).resolve()
        if not path.is_file():
            raise ConfigError(f"{what}: {path} is not there any more: put it back before you pack")
        return _add(files, path, base)

    place, attribute = split_name(str(result["env"]))
    if place.endswith(".py"):
        home = (base / place).resolve().parent
        root = base if home.is_relative_to(base) else home
        inside = take(place, "env")
        for path in _used(home / Path(place).name, home):
            _add(files, path, root)
        result["env"] = f"{inside}:{attribute}" if attribute else inside
    for holder, key, what in _paths(result):
        holder[key] = take(holder[key], what)
    return Sources(files, result)


def _add(files: dict[str, Path], path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    if files.setdefault(name, path) != path:
        raise ConfigError(f"{path} and {files[name]} would have the same name in the bundle: rename one")
    return name


def _paths(recipe: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Where the recipe names a file: the mapping, its key, and the key as a user writes it."""
    for number, stage in enumerate(recipe.get("stages", [])):
        if (stage.get("sft") or {}).get("data") is not None:
            yield stage["sft"], "data", f"stages.{number}.sft.data"
    if recipe.get("model", {}).get("template", "own") not in ("own", "fallback"):
        yield recipe["model"], "template", "model.template"
    if (recipe.get("checks") or {}).get("must_pass") is not None:
        yield recipe["checks"], "must_pass", "checks.must_pass"


def _used(path: Path, home: Path) -> list[Path]:
    """The Python files that `path` imports from its folder, however indirectly, and every file of the folder
    that one of them names in a text.
    """
    found: list[Path] = []
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found.append(file)
        if file.suffix == ".py":
            tree = _parsed(file)
            waiting += [*_imported(tree, home), *_named(tree, file.parent, home)]
    return found


def _parsed(file: Path) -> ast.AST:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        raise ConfigError(f"{file} is no Python that can be read: {error}") from None


def _imported(tree: ast.AST, home: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in {name.partition(".")[0] for name in names}:
            if (home / f"{name}.py").is_file():
                yield home / f"{name}.py"
            elif (home / name).is_dir():
                yield from sorted((home / name).rglob("*.py"))


def _named(tree: ast.AST, folder: Path, home: Path) -> Iterator[Path]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        text = node.value
        if not text or len(text) > LONGEST or not text.isprintable() or text.endswith(".py"):
            continue
        path = (folder / text).resolve()
        if path.is_relative_to(home) and path.is_file():
            yield path
