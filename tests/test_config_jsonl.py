"""JSON lines: whatever is in a row, it comes back, or a sentence says why not."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from renshu.errors import DataError
from renshu.jsonl import append_rows, line_of, parse_json, read_object, read_rows, user_lines


def test_a_line_is_one_line_of_utf8_whatever_is_in_it():
    assert line_of({"練": "習\u2028"}) == '{"練": "習\u2028"}\n'.encode()
    assert line_of({"half": "\ud800"}) == b'{"half": "\\ud800"}\n'
    assert line_of({"p": math.nan, "of": (1, {"q": -math.inf})}) == b'{"p": null, "of": [1, {"q": null}]}\n'
    assert line_of({"path": Path("a")}) == b'{"path": "a"}\n'


def test_rows_come_back_and_a_line_without_its_end_is_left_out(tmp_path):
    path = tmp_path / "new/rows.jsonl"
    assert read_rows(path) == []
    append_rows(path, [{"a": 1}, {"a": "\ud800\x85"}])
    with path.open("ab") as file:
        file.write('{"a": "練'.encode()[:-1])
    assert read_rows(path) == [{"a": 1}, {"a": "\ud800\x85"}]


@pytest.mark.parametrize("line", ["{", "[1]", "", "[" * 100_000])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(DataError, match=r"rows.jsonl is damaged at line 2: "):
        read_rows(path)


def test_the_lines_of_a_user_are_those_that_say_something(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('\ufeff{"a": 1}\r\n \n{"b": 2}', "utf-8")
    assert [parse_json(line) for line in user_lines(path)] == [{"a": 1}, {"b": 2}]
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(DataError, match=r"rows.jsonl is not UTF-8 text: invalid start byte at byte 7"):
        user_lines(path)


@pytest.mark.parametrize("text", ["", "{'a': 1}", "NaN", "-Infinity", "1e999", "[" * 100_000, "9" * 5000])
def test_what_is_no_json_is_refused_in_two_words(text):
    with pytest.raises(ValueError, match=r"^not JSON$"):
        parse_json(text)


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '[{"b": {"a": true, "c": 1, "a": false}}]'])
def test_a_key_twice_is_named(text):
    with pytest.raises(ValueError, match=r"^the key 'a' twice in an object$"):
        parse_json(text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "a.json cannot be read: No such file or directory"),
        (b"", r"a.json is damaged: Expecting value"),
        (b"[]", r"a.json is damaged: expected an object, found '\[\]'"),
        (b"\x80", "a.json is damaged: invalid start byte at byte 0"),
        (b"[" * 100_000, "a.json is damaged: nested too deeply"),
        (b'{"b": 1}', "a.json is damaged: it has no a, c$"),
    ],
)
def test_a_damaged_object_is_named(tmp_path, data, reason):
    path = tmp_path / "a.json"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(DataError, match=reason):
        read_object(path, ("a", "b", "c"))


def test_a_row_without_its_keys_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"step": 1}\n{}\n')
    with pytest.raises(DataError, match="a.jsonl is damaged at line 2: it has no step"):
        read_rows(path, ("step",))
