"""Files that a verb writes at its end are tried before its work."""

import os
import sys
from pathlib import Path

import pytest

from renshu.cli import main
from renshu.cli.check import _shortened
from renshu.errors import ConfigError
from renshu.places import require_writable
from tiny_models import qwen_template, save_tiny_model


@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    """A folder with a file where a folder is wanted; no model can be loaded, no script played."""
    save_tiny_model(tmp_path / "tiny", template=qwen_template())
    (tmp_path / "file").write_text("")

    def none(*_arguments, **_options):
        raise AssertionError("work was done before the file was tried")

    for place in ("pipeline.agent", "pipeline.measure", "pipeline.bench"):
        monkeypatch.setattr(f"renshu.{place}.build_agent", none)
    for collect in ("script", "model", "log"):
        monkeypatch.setattr(f"renshu.pipeline.play.collect_from_{collect}", none)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "verb"),
    [
        ("--save", ["play", "flights", "--policy", "solve"]),
        ("--save", ["play", "flights", "--policy", "tiny"]),
        ("--save", ["play", "flights"]),
        ("--log", ["eval", "tiny", "--env", "flights"]),
        ("--log", ["serve", "tiny"]),
        ("--html", ["compare", "tiny", "--env", "flights"]),
    ],
)
@pytest.mark.parametrize(
    ("place", "reason"), [("file/below.x", "Not a directory"), ("new/" + "n" * 300, "File name too long")]
)
def test_the_file_is_tried_before_the_work(work, monkeypatch, capsys, option, verb, place, reason):
    monkeypatch.setattr(sys, "argv", ["renshu", *verb, option, place])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (1, "")
    assert told.err == f"error: {option} {place}: cannot be written: {reason}; name another file\n"
    assert sorted(path.name for path in work.iterdir()) == ["file", "tiny"]


def test_what_can_be_written_is_left_as_it_is(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("kept")
    require_writable(file, "--save")
    require_writable(tmp_path / "new" / "folder" / "page.html", "--html")
    require_writable(Path(os.devnull), "--log")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    assert file.read_text() == "kept"


def test_a_folder_and_a_name_that_no_disk_takes_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written: it is a folder; name another file"):
        require_writable(tmp_path, "--html")
    with pytest.raises(ConfigError, match="cannot be written: embedded null byte"):
        require_writable(tmp_path / "a\0b", "--html")


def test_long_prompts_are_shown_by_their_ends():
    assert _shortened("x" * 600) == "x" * 600
    shown = _shortened("a" * 1000 + "b" * 1000)
    assert shown == f"{'a' * 300}\n… 1,400 more characters (--json has them) …\n{'b' * 300}"
