"""From the words of a recipe to an environment class that keeps its contract."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from renshu.envs import Environment
from renshu.errors import ConfigError
from renshu.seeding import stable_hash

BUILT_IN = {"flights": "renshu.envs.flights:FlightDesk", "repairs": "renshu.envs.repairs:RepairDesk"}


def load_environment(name: str, base: str | Path = ".") -> type[Environment]:
    """The class that a recipe's `env` names: a built-in name, `file.py:Class` or `package.module:Class`.

    base: the folder that a relative file is looked up in, usually the recipe's. Loading runs the file's code.
    Raises ConfigError that says what was found instead.
    """
    place, _, attribute = BUILT_IN.get(name, name).partition(":")
    if not attribute:
        known = ", ".join(BUILT_IN)
        raise ConfigError(f"env: {name!r} is neither built in ({known}) nor of the form file.py:Class")
    module = _from_file(Path(base) / place) if place.endswith(".py") else _from_package(place)
    found = getattr(module, attribute, None)
    if isinstance(found, type) and issubclass(found, Environment):
        return found
    classes = [k for k, v in vars(module).items() if isinstance(v, type) and issubclass(v, Environment)]
    has = ", ".join(k for k in classes if k != "Environment") or "no environment"
    what = "there is no such name" if found is None else "that is no subclass of renshu.Environment"
    raise ConfigError(f"env: {name}: {what}; {place} defines {has}")


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ConfigError(f"env: {path}: no such file")
    module_name = f"renshu_env_{stable_hash(str(path)):x}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and type hints look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise ConfigError(f"env: {path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def _from_package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(f"env: {name} cannot be imported: {error}") from error
    except (Exception, SystemExit) as error:  # the module's own code fails
        raise ConfigError(f"env: {name} cannot be imported: {type(error).__name__}: {error}") from error
