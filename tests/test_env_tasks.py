"""Tasks: identity seeds, splits, and files with bad rows."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.envs.tasks import Tasks
from renshu.errors import ConfigError, DataError
from renshu.seeding import generator


def draw(random):
    return {"number": random.randrange(10**9)}


def test_generated_tasks_are_seeded_by_identity():
    tasks = Tasks.generated(draw, train=3, dev=2, test=2, name="dice")
    assert [task.id for task in tasks.train] == ["dice/train/0", "dice/train/1", "dice/train/2"]
    assert tasks.test[1]["number"] == generator("dice/test/1").randrange(10**9)
    assert tasks.train[-1] == tasks.train[2]
    assert tasks.train[:2] == [tasks.train[0], tasks.train[1]]
    with pytest.raises(IndexError):
        tasks.train[3]


def test_a_longer_split_keeps_its_first_tasks_and_splits_differ():
    short = Tasks.generated(draw, train=4, dev=4, test=4)
    long = Tasks.generated(draw, train=40, dev=4, test=4)
    assert list(long.train)[:4] == list(short.train)
    numbers = [task["number"] for split in (long.train, long.dev, long.test) for task in split]
    assert len(set(numbers)) == 48


def test_empty_split_and_negative_size_are_refused():
    with pytest.raises(DataError, match="test split has no tasks"):
        Tasks.generated(draw, train=1, dev=0, test=0).split("test")
    with pytest.raises(ConfigError, match="cannot have -1 tasks"):
        Tasks.generated(draw, train=1, dev=-1, test=0)


def write(path, lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def test_bad_rows_are_set_aside_and_counted(tmp_path):
    path = write(
        tmp_path / "desk.jsonl",
        [
            {"id": "a", "split": "train", "q": 1},
            "{broken",
            "[1]",
            {"id": "b"},
            {"id": "c", "split": "eval"},
            {"id": "a", "split": "dev"},
            "",
            {"id": "d", "split": "test"},
            '{"id": "e", "split": "dev", "x": NaN}',
        ],
    )
    tasks = Tasks.from_jsonl(path, split_by="split")
    assert [task.id for task in tasks.train] == ["desk/a"]
    assert [task.id for task in tasks.test] == ["desk/d"]
    assert list(tasks.dev) == []
    assert tasks.set_aside == {
        "not JSON": 2,
        "not an object": 1,
        "no field 'split'": 1,
        "unknown split": 1,
        "repeated id": 1,
    }
    assert tasks.train[0].fields == {"id": "a", "split": "train", "q": 1}


def test_rows_without_id_are_known_by_their_number(tmp_path):
    tasks = Tasks.from_jsonl(write(tmp_path / "t.jsonl", [{"q": 1}, {"q": 2}]), shares=(1.0, 0.0, 0.0))
    assert [task.id for task in tasks.train] == ["t/0", "t/1"]


def test_missing_empty_and_unreadable_files_are_data_errors(tmp_path):
    with pytest.raises(DataError, match=r"none.jsonl cannot be read: No such file"):
        Tasks.from_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="the file is empty"):
        Tasks.from_jsonl(write(tmp_path / "empty.jsonl", ["", " "]))
    with pytest.raises(DataError, match="not JSON: 2 rows"):
        Tasks.from_jsonl(write(tmp_path / "bad.jsonl", ["a", "b"]))
    with pytest.raises(ConfigError, match="three parts of 1"):
        Tasks.from_jsonl(write(tmp_path / "ok.jsonl", [{"q": 1}]), shares=(0.5, 0.1, 0.1))
    (tmp_path / "latin.jsonl").write_bytes(b'{"q": "\xff"}')
    with pytest.raises(DataError, match="not UTF-8"):
        Tasks.from_jsonl(tmp_path / "latin.jsonl")


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_equal_values_never_straddle_splits(tmp_path_factory, values):
    path = write(
        tmp_path_factory.mktemp("d") / "t.jsonl", [{"id": i, "user": v} for i, v in enumerate(values)]
    )
    tasks = Tasks.from_jsonl(path, split_by="user")
    seen = [{task["user"] for task in split} for split in (tasks.train, tasks.dev, tasks.test)]
    assert sum(len(users) for users in seen) == len(set(values))
    assert sum(len(split) for split in (tasks.train, tasks.dev, tasks.test)) == len(values)


def test_shares_are_met_on_many_rows(tmp_path):
    tasks = Tasks.from_jsonl(write(tmp_path / "t.jsonl", [{"id": i} for i in range(2000)]))
    assert 1540 <= len(tasks.train) <= 1660  # 80 % ± 3.4 standard deviations
    assert 155 <= len(tasks.dev) <= 245


def test_hostile_rows_are_set_aside(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [b"[" * 100_000, b'{"a": ' * 3000 + b"1" + b"}" * 3000, b'{"a": NaN}', b'{"a": 1e999}', b"\x00"]
    rows += [b'{"a": ' + b"9" * 5000 + b"}", b'{"id": null, "a": 1}', b'{"id": "\\ud800"}']
    path.write_bytes(b"\n".join(rows))
    tasks = Tasks.from_jsonl(path)
    assert tasks.set_aside == {"not JSON": 6}
    found = {task.id for split in (tasks.train, tasks.dev, tasks.test) for task in split}
    assert found == {"rows/6", "rows/?"}  # a row without an id is known by its number
