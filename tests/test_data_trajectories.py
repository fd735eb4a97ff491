"""The store of trajectories: what was written comes back, exactly where it can; damaged lines are counted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from chat_kit import TOOL, chat
from renshu.data.trajectories import read_groups, segments_of
from renshu.errors import DataError
from renshu.evaluation.records import trajectory_record
from renshu.types import Group, Message, Scored, Segment, Stop, Task, Trajectory, Unscored

FORMAT = chat("qwen2_5")
ASKED = (Message("user", "hi"), Message("assistant", "yes"))


def trajectory(task: str, token: int, score, **changes) -> Trajectory:
    segments = (Segment((1, 2)), Segment((token, 5), sampled=True, logprobs=(-0.5, -0.25)))
    return replace(Trajectory(Task(task), segments, ASKED, Stop.ANSWERED, score), **changes)


GOOD, BAD, UNKNOWN = Scored(1.0, success=True), Scored(0.25, success=False), Unscored("judge_failed: down")
STEPS = [
    [trajectory("t/0", 7, GOOD), trajectory("t/1", 8, BAD), trajectory("t/0", 9, BAD)],
    [trajectory("t/0", 7, UNKNOWN, forks=((Segment((1,)), Segment((3,), sampled=True, logprobs=(0.0,))),))],
]


def write(folder, steps=STEPS, template=FORMAT.fingerprint):
    for number, step in enumerate(steps, start=1):
        file = folder / f"trajectories/practice/step-{number:05}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        records = [{**trajectory_record(one), "template": template} for one in step]
        file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return folder


def test_what_was_written_comes_back_in_groups_of_a_task_within_a_step(tmp_path):
    run = write(tmp_path)
    (run / "trajectories/samples.jsonl").write_text("shown to people, read by none\n")
    read = read_groups(run, chat=FORMAT)
    assert read.groups == (
        Group(Task("t/0"), (STEPS[0][0], STEPS[0][2])),
        Group(Task("t/1"), (STEPS[0][1],)),
        Group(Task("t/0"), (STEPS[1][0],)),
    )
    assert (read.exact, read.rendered, read.set_aside, read.notes) == (4, 0, {}, [])
    assert read_groups(run, "practice", steps={2}, chat=FORMAT).groups == read.groups[2:]
    file = run / "trajectories/practice/step-00001.jsonl"
    assert read_groups(file, chat=FORMAT).groups == read.groups[:2]
    with pytest.raises(DataError, match=r":other holds no trajectories \(there is no such file in it\)"):
        read_groups(run, "other", chat=FORMAT)


def test_tokens_of_another_chat_format_are_rendered_anew(tmp_path):
    read = read_groups(write(tmp_path, STEPS[:1], template="another"), chat=FORMAT, tools=[TOOL])
    expected = segments_of(FORMAT.supervised(ASKED, [TOOL]))
    assert [list(t.segments) for group in read.groups for t in group.trajectories] == [expected] * 3
    assert expected[-1] == Segment(tuple(FORMAT.tokenizer.encode("yes<|im_end|>")), sampled=True)
    assert read.notes == [
        "3 of 3 trajectories were rendered anew from their messages, as their tokens are of another model or "
        "chat format"
    ]


def test_damaged_lines_are_set_aside_and_counted(tmp_path):
    whole = {**trajectory_record(STEPS[0][0]), "template": FORMAT.fingerprint}
    paths = [[{"ids": [1], "sampled": False}, {"ids": [2], "sampled": True, "logprobs": [-1.0]}]]
    changes = [
        {"messages": None},
        {"messages": [{"role": "critic", "content": ""}]},
        {"paths": [[{"ids": [10**9], "sampled": True}]]},
        {"paths": [[{"ids": [True], "sampled": True}]]},
        {"paths": [[paths[0][0]]]},
        {"paths": []},
        {"paths": [[{"ids": [1]}]]},
        {"paths": [[{**paths[0][1], "logprobs": [-1.0, -2.0]}]]},
        {"reward": "much"},
        {"reward": True},
        {"reward": 10**400},
        {"success": 1},
        {"label": "up"},
        {"stop": "bored"},
        {"paths": paths},
    ]
    lines = [json.dumps({**whole, **change}) for change in changes]
    (tmp_path / "x.jsonl").write_text("\n".join([*lines, '{"messages": [', '{"reward": NaN}']), "utf-8")
    read = read_groups(tmp_path / "x.jsonl", chat=FORMAT)
    assert sum(len(group.trajectories) for group in read.groups) == 1
    assert read.set_aside == {
        "no object with a list of messages": 1,
        "unknown role 'critic'": 1,
        "ids that are no tokens of the model": 2,
        "paths without a sampled token": 2,
        "no key 'sampled'": 1,
        "1 ids but 2 logprobs": 1,
        "reward that is no number": 2,
        "int too large to convert to float": 1,
        "success that is not true or false": 1,
        "label that is not true or false": 1,
        "'bored' is not a valid Stop": 1,
        "not JSON": 2,
    }
    (tmp_path / "x.jsonl").write_text(lines[0], "utf-8")
    with pytest.raises(DataError, match=r"holds no trajectories \(no object with a list of messages: 1\)"):
        read_groups(tmp_path / "x.jsonl", chat=FORMAT)


def test_a_file_written_by_hand_needs_messages_and_a_thumb_only(tmp_path):
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    rows = [
        {"messages": messages, "label": True},
        {"messages": messages, "label": False, "reward": 0.75, "success": True},
        {"messages": messages, "task": "t"},
        {"messages": messages, "task": "t", "reward": 1},
    ]
    (tmp_path / "thumbs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    groups = read_groups(tmp_path / "thumbs.jsonl", chat=FORMAT).groups
    assert [(group.task.id, [t.score for t in group.trajectories]) for group in groups] == [
        ("thumbs.jsonl/1", [Scored(1.0, success=True)]),
        ("thumbs.jsonl/2", [Scored(0.75, success=False)]),
        ("t", [Unscored("unscored: no reward in the file"), Scored(1.0)]),
    ]
