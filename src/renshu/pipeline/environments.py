"""From the words of a recipe, or of a person, to an environment class and its tasks."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from renshu.envs import Environment
from renshu.envs.tasks import SPLITS
from renshu.errors import ConfigError
from renshu.seeding import stable_hash
from renshu.types import Task

BUILT_IN = {"flights": "renshu.envs.flights:FlightDesk", "repairs": "renshu.envs.repairs:RepairDesk"}


def environment_of(target: str) -> type[Environment]:
    """The environment that a person names: all that `load_environment` takes, or a recipe (`*.yaml`).

    Raises ConfigError.
    """
    if not target.endswith((".yaml", ".yml")):
        return load_environment(target)
    from renshu.pipeline.recipe import read_recipe

    return load_environment(read_recipe(target).environment, Path(target).parent)


def tasks_from(
    environment: type[Environment], split: str, first: int = 0, count: int | None = None
) -> Sequence[Task]:
    """`count` tasks (default: all) of the split that a person names, from number `first` on.

    Raises ConfigError for a split or task that there is not, DataError for a split without tasks.
    """
    if split not in SPLITS:
        raise ConfigError(f"split {split!r}: expected one of {', '.join(SPLITS)}")
    if environment.tasks is None:
        raise ConfigError(f"{environment.__name__} has no tasks: set `tasks` to Tasks")
    tasks = environment.tasks.split(split)
    if first >= len(tasks):
        raise ConfigError(f"there is no {split} task {first}: the last one is {len(tasks) - 1}")
    return tasks[first : None if count is None else first + count]


def load_environment(name: str, base: str | Path = ".") -> type[Environment]:
    """The class that a recipe's `env` names: a built-in name, `file.py:Class` or `package.module:Class`; of a
    file that defines one environment also `file.py`.

    base: the folder that a relative file is looked up in, usually the recipe's. Loading runs the file's code.
    Raises ConfigError that says what was found instead.
    """
    place, attribute = split_name(name)
    is_file = place.endswith(".py")
    if not attribute and not is_file:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"env: {name!r} is neither built in ({known}) nor of the form file.py:Class")
    module = load_file(Path(base) / place) if is_file else _from_package(place)
    classes = {k: v for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Environment)}
    own = [v for v in classes.values() if v.__module__ == module.__name__]
    if not attribute and len(own) == 1:
        return own[0]
    found = getattr(module, attribute, None) if attribute else None
    if isinstance(found, type) and issubclass(found, Environment):
        return found
    has = ", ".join(k for k in classes if k != "Environment") or "no environment"
    what = "that is no subclass of renshu.Environment" if found is not None else "there is no such name"
    if not attribute:
        what = "write file.py:Class to say which one"
    raise ConfigError(f"env: {name}: {what}; {place} defines {has}")


def split_name(name: str) -> tuple[str, str]:
    """Place and attribute of a recipe's `env`, built in or not; "" where it names no class.

    The colon behind a drive letter (`C:\\work\\desk.py:Desk`) separates nothing.
    """
    name = BUILT_IN.get(name, name)
    place, _, attribute = name.rpartition(":")
    return (place, attribute) if place and not name.endswith(".py") else (name, "")


def load_file(path: Path) -> ModuleType:
    """Run a Python file as a module of its own. Raises ConfigError if there is none or it fails."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"env: {path}: no such file")
    module_name = f"renshu_env_{stable_hash(str(path)):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and type hints look their module up here
    _look_beside(path.parent)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"env: {path} cannot be run: {type(error).__name__}: {error}") from error
    return module


_BESIDE: list[str] = []  # folders of files that were loaded, the latest first


def _look_beside(folder: Path) -> None:
    """Let files of `folder` import the modules beside them, not those of their name beside an earlier file.

    Folders come last in the search, so that none hides a package.
    """
    earlier = [Path(entry) for entry in _BESIDE if entry != str(folder)]
    for name, module in sys.modules.copy().items():  # at once: other threads import, too
        top, file = name.partition(".")[0], getattr(module, "__file__", None)
        clashes = (folder / f"{top}.py").is_file() or (folder / top).is_dir()
        if clashes and file and any(Path(file).is_relative_to(place) for place in earlier):
            del sys.modules[name]
    _BESIDE[:] = [str(folder), *map(str, earlier)]
    sys.path[:] = [entry for entry in sys.path if entry not in _BESIDE] + _BESIDE
    importlib.invalidate_caches()


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"env: {name} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # the module's own code fails
        raise ConfigError(f"env: {name} cannot be imported: {type(error).__name__}: {error}") from error
