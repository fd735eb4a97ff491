"""What an environment is made of: the same files for provenance, comparisons and archives."""

from __future__ import annotations

import hashlib
import inspect
from pathlib import Path

from renshu.envs import flights
from renshu.handover.pack import CODE_FOLDER
from renshu.pipeline.sources import environment_files, source_record, sources_of

FILES = {
    "desks/desk.py": "import helper, numpy\nfrom parts import menu\nTASKS = 'data/tasks.jsonl'\n",
    "desks/helper.py": "import desk\nNOTE = 'no such file'\n",
    "desks/parts/__init__.py": "",
    "desks/parts/menu.py": "MENU = '../menu.json'\n",
    "desks/parts/torn.py": "def (",
    "desks/menu.json": "[]",
    "desks/data/tasks.jsonl": "{}",
    "desks/unused.py": "1 / 0",
    "outside.json": "[]",
}


def write(folder: Path, files: dict[str, str] = FILES) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_an_environment_is_its_file_what_it_imports_and_what_these_name(tmp_path):
    found = environment_files("desks/desk.py:Desk", write(tmp_path))
    assert sorted(found) == [
        *("data/tasks.jsonl", "desk.py", "helper.py", "menu.json"),
        *("parts/__init__.py", "parts/menu.py", "parts/torn.py"),
    ]
    assert found["menu.json"] == tmp_path / "desks/menu.json"


def test_every_file_is_recorded_wherever_the_folder_lies(tmp_path):
    record = source_record("desks/desk.py:Desk", write(tmp_path / "one"))
    assert record["source menu.json"] == hashlib.sha256(b"[]").hexdigest()
    assert source_record("desk.py", write(tmp_path / "two") / "desks") == record
    (tmp_path / "two/desks/helper.py").write_text("", encoding="utf-8")
    changed = source_record("desk.py", tmp_path / "two/desks")
    assert {name for name in record if record[name] != changed[name]} == {"source helper.py"}


def test_an_archive_carries_the_files_that_are_recorded(tmp_path):
    recipe = {"env": "desks/desk.py:Desk"}
    packed = sources_of(recipe, write(tmp_path / "maker"))
    write(tmp_path / CODE_FOLDER, {name: path.read_text("utf-8") for name, path in packed.files.items()})
    again = source_record(packed.recipe["env"], tmp_path / CODE_FOLDER)
    assert again == source_record(recipe["env"], tmp_path / "maker")


def test_of_what_is_built_in_the_module_is_recorded(tmp_path):
    text = Path(inspect.getfile(flights)).read_bytes()
    assert source_record("flights", tmp_path) == {
        "source renshu.envs.flights": hashlib.sha256(text).hexdigest()
    }
