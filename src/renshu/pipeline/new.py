"""`renshu new` as a function: a folder with an environment, recipe, cases and test that run as they are."""

from __future__ import annotations

import json
import keyword
import shutil
import sys
import unicodedata
from importlib.resources import files
from pathlib import Path
from string import Template

from renshu.errors import ConfigError
from renshu.pipeline.schema import recipe_schema

LANGUAGES = ("en", "zh")
SUFFIX = ".template"
TAKEN = frozenset(  # names that the new file uses itself
    {"Environment", "Tasks", "ToolError", "FIRST_NAMES", "LAST_NAMES", "SURNAMES", "GIVEN_NAMES", "REQUESTS"}
)


def write_new(name: str, parent: str | Path = ".", language: str = "en") -> Path:
    """Write the folder `parent/name` and return it. language: of prompts, tool docs, requests and comments.

    Raises ConfigError for a name that cannot be a module's, an unknown language, or a folder that is there.
    """
    require_name(name)
    if language not in LANGUAGES:
        raise ConfigError(f"language {language!r}: expected one of {', '.join(LANGUAGES)}")
    folder = Path(parent).expanduser() / name
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise ConfigError(
            f"{folder} is there already and is never overwritten: choose another name, or a place with --dir"
        ) from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror or error}") from None
    words = {"name": name, "Name": class_name(name)}
    texts = {
        file_name.format(name=name): Template(text).substitute(words)
        for file_name, text in _templates(language).items()
    }
    texts["recipe.schema.json"] = json.dumps(recipe_schema(), indent=1, ensure_ascii=False) + "\n"
    try:
        for file_name, text in texts.items():
            (folder / file_name).write_text(text, encoding="utf-8", newline="\n")
    except OSError:
        shutil.rmtree(folder)  # all of it or nothing
        raise
    return folder


def require_name(name: str) -> None:
    """Raise ConfigError unless a module, and a class called after it, may have this name."""
    if name != (plain := unicodedata.normalize("NFKC", name)):  # Python looks for the other file
        raise ConfigError(f"{name!r} is read by Python as {plain!r}: choose a name that is spelled so")
    if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
        near = "".join(letter if letter.isalnum() else "_" for letter in name).strip("_").lower()
        usable = near.isidentifier() and not keyword.iskeyword(near)
        hint = f", e.g. {near}" if usable else ", e.g. order_desk"
        raise ConfigError(
            f"{name!r} cannot be the name of a Python file: use letters, digits and _, a letter first{hint}"
        )
    if name in sys.stdlib_module_names or name in ("renshu", "pytest", "torch", "transformers"):
        raise ConfigError(f"{name!r} is the name of a module that Python loads: choose another")


def class_name(name: str) -> str:
    """`OrderDesk` of `order_desk`."""
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_"))
    return f"{found}Environment" if keyword.iskeyword(found) or found in TAKEN else found


def _templates(language: str) -> dict[str, str]:
    """The files of a new folder by their names, in which `{name}` stands for the environment's."""
    folder = files("renshu") / "scaffold" / language
    names = {"environment.py": "{name}.py", "test.py": "test_{name}.py"}
    found = {}
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(SUFFIX):
            stem = entry.name.removesuffix(SUFFIX)
            found[names.get(stem, stem)] = entry.read_text("utf-8")
    return found
