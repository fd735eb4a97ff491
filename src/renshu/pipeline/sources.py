"""Which files an environment is made of: its own code, the modules beside it, the data that they name.

A run records what they hold; an archive carries them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
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
        for path in environment_files(place, base).values():
            _add(files, path, root)
        result["env"] = f"{inside}:{attribute}" if attribute else inside
    for holder, key, what in _paths(result):
        holder[key] = take(holder[key], what)
    return Sources(files, result)


def environment_files(env: str, base: Path) -> dict[str, Path]:
    """The files that the environment of a recipe in `base` is made of, by their names, the same wherever its
    folder lies. Of what is built in, or of a package, the module alone: its version tells the rest.
    """
    place, _ = split_name(env)
    if place.endswith(".py"):
        path = (base / place).resolve()
        return {file.relative_to(path.parent).as_posix(): file for file in _used(path, path.parent)}
    spec = importlib.util.find_spec(place)
    return {place: Path(spec.origin)} if spec is not None and spec.origin is not None else {}


def source_record(env: str, base: Path) -> dict[str, str]:
    """SHA-256 of each of `environment_files`, as a run's provenance has them: `{"source desk.py": …}`."""
    return {f"source {name}": sum_of(path) for name, path in sorted(environment_files(env, base).items())}


def sum_of(path: Path) -> str:
    """SHA-256 of a file, "" if there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add(files: dict[str, Path], path: Path, root: Path) -> str:
    name = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    if files.setdefault(name, path) != path:
        raise ConfigError(f"{path} and {files[name]} would have the same name in the bundle: rename one")
    return name


def _paths(recipe: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Where the recipe names a file: the mapping, its key, and the key as a user writes it."""
    for number, stage in enumerate(recipe.get("stages", [])):
        for algorithm, settings in stage.items():
            if isinstance(settings, dict) and settings.get("data") is not None:
                yield settings, "data", f"stages.{number}.{algorithm}.data"
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
    except (SyntaxError, ValueError):  # ValueError: a null byte
        return ast.Module([], [])  # nothing that runs imports it


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
