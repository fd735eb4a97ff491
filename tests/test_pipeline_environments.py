"""Files of environments import the modules beside them, each its own."""

import sys

import pytest

from renshu.errors import ConfigError
from renshu.pipeline.environments import load_environment, load_file

DESK = """
from renshu import Environment
import tariff_beside
{late}

class Desk(Environment):
    system = tariff_beside.NAME

    def later(self):
        import rate_beside
        return rate_beside.RATE
"""


def desk(folder, name, late=""):
    folder.mkdir()
    (folder / "desk.py").write_text(DESK.format(late=late), encoding="utf-8")
    (folder / "tariff_beside.py").write_text(f"NAME = {name!r}\n", encoding="utf-8")
    (folder / "rate_beside.py").write_text(f"RATE = {name!r}\n", encoding="utf-8")


@pytest.fixture(autouse=True)
def _undone(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("renshu.pipeline.environments._BESIDE", [])


def test_two_folders_with_a_module_of_the_same_name(tmp_path):
    desk(tmp_path / "a", "first")
    desk(tmp_path / "b", "second")
    first = load_environment("desk.py:Desk", tmp_path / "a")
    second = load_environment("desk.py:Desk", tmp_path / "b")
    again = load_environment("desk.py:Desk", tmp_path / "a")
    assert (first.system, second.system, again.system) == ("first", "second", "first")
    assert again().later() == "first"


def test_a_module_beside_hides_no_package(tmp_path):
    desk(
        tmp_path / "a",
        "first",
        late="import json\nassert json.dumps([1]) == '[1]'\nimport yaml\nyaml.safe_load",
    )
    (tmp_path / "a" / "json.py").write_text("raise SystemExit('hidden')", encoding="utf-8")
    (tmp_path / "a" / "yaml.py").write_text("raise SystemExit('hidden')", encoding="utf-8")
    assert load_environment("desk.py:Desk", tmp_path / "a").system == "first"
    assert load_environment("desk.py:Desk", tmp_path / "a").system == "first"
    import json

    assert json.loads("1") == 1


def test_a_file_that_fails_leaves_no_half_module(tmp_path):
    (tmp_path / "bad.py").write_text("import nowhere_at_all", encoding="utf-8")
    before = set(sys.modules)
    with pytest.raises(
        ConfigError, match="cannot be run: ModuleNotFoundError: No module named 'nowhere_at_all'"
    ):
        load_file(tmp_path / "bad.py")
    assert not [name for name in set(sys.modules) - before if name.startswith("renshu_env_")]
