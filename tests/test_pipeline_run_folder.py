"""Run folders: nothing of somebody else's is touched, and no two processes write into one."""

import subprocess
import sys
from pathlib import Path

import pytest

from renshu.errors import ConfigError, DataError
from renshu.pipeline.run_folder import LOCK, RunFolder

WRITER = """
import sys
from renshu.pipeline.run_folder import RunFolder
run = RunFolder.create(sys.argv[1])
run.write_text("recipe.resolved.yaml", "seed: 0")
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_run_that_goes_on_is_not_overwritten_and_a_dead_one_can_be(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        for _ in range(2):
            with pytest.raises(ConfigError, match="is being written by another run"):
                RunFolder.create(path, overwrite=True)
        assert (path / "recipe.resolved.yaml").is_file()
        writer.kill()
    assert (path / LOCK).is_file()
    with pytest.raises(ConfigError, match="holds a run: pass --overwrite"):
        RunFolder.create(path)
    run = RunFolder.create(path, overwrite=True)
    assert [entry.name for entry in path.iterdir()] == [LOCK]
    run.close()
    run.close()
    assert list(path.iterdir()) == []


def test_overwriting_empties_the_run_and_follows_no_links(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("kept")
    run = RunFolder.create(tmp_path / "run")
    run.write_text("recipe.resolved.yaml", "seed: 0")
    run.write_text("trajectories/a/b.jsonl", "")
    (run.path / "link").symlink_to(tmp_path / "mine")
    run.close()
    RunFolder.create(run.path, overwrite=True).close()
    assert list(run.path.iterdir()) == []
    assert (tmp_path / "mine/notes.txt").read_text() == "kept"


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for place, reason in {
        tmp_path / "file": "exists: choose another place",
        tmp_path / "file/run": "Not a directory",
        tmp_path / ("x" * 300): "File name too long",
        tmp_path / "a\0b": "null byte",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            RunFolder.create(place, overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_lines_hold_any_character(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.append_lines("a.jsonl", [{"text": "練\u2028\ud800"}])
    assert (tmp_path / "a.jsonl").read_bytes() == '{"text": "練\u2028\\ud800"}\n'.encode()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for text in ("{bad", "[]"):
        (tmp_path / "provenance.json").write_text(text)
        with pytest.raises(DataError, match=r"provenance.json is damaged: "):
            run.read_json("provenance.json")
    with pytest.raises(DataError, match=r"nothing.json cannot be read"):
        run.read_json("nothing.json")
