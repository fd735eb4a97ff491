"""Preference files in TRL's shapes: which tokens are whose, what is trained, what is set aside."""

from __future__ import annotations

import json

import pytest

from chat_kit import CALL, TOOL, WIRE_CALL, chat, shown
from renshu.data.preferences import read_labelled, read_pairs
from renshu.errors import DataError
from renshu.types import Message, Row

FORMAT = chat("qwen2_5")
CALLED = {"role": "assistant", "tool_calls": [WIRE_CALL]}
ANSWERED = {"role": "tool", "content": "12"}


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


USER, GOOD, BAD = say("user", "hi"), say("assistant", "yes"), say("assistant", "no")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def parts(row: Row) -> tuple[str, str]:
    """What comes before the first trained token, and all that is trained."""
    start = row.trained.index(True)
    kept = [token for token, trained in zip(row.ids, row.trained, strict=True) if trained]
    return shown(FORMAT, row.ids[:start]), shown(FORMAT, kept)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "yes", "rejected": "no"},
        {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
        {"prompt": [USER], "chosen": "yes", "rejected": "no"},
        {"prompt": "hi", "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "hi", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"prompt": "another text", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
        {"chosen": "hi yes", "rejected": "hi no"},  # spaces before the answers are theirs
    ],
)
def test_all_shapes_of_a_pair_are_the_same_pair(tmp_path, row):
    (pair,) = read_pairs(write(tmp_path / "p.jsonl", [row]), FORMAT).items
    space = " " if isinstance(row["chosen"], str) and "prompt" not in row else ""
    asked = FORMAT.prompt([Message("user", "hi")])
    assert parts(pair.chosen) == (shown(FORMAT, asked), f"{space}yes<|im_end|>")
    assert parts(pair.rejected) == (shown(FORMAT, asked), f"{space}no<|im_end|>")


def test_tool_answers_and_the_prompt_are_never_trained(tmp_path):
    """The first call belongs to both sides, so to the prompt where none is given, and to the sides else."""
    ends = [[CALLED, ANSWERED, GOOD], [CALLED, ANSWERED, BAD]]
    implicit = {"chosen": [USER, *ends[0]], "rejected": [USER, *ends[1]], "tools": [TOOL]}
    explicit = {"prompt": [USER], "chosen": ends[0], "rejected": ends[1], "tools": json.dumps([TOOL])}
    shared, apart = read_pairs(write(tmp_path / "p.jsonl", [implicit, explicit]), FORMAT).items
    before = [Message("user", "hi"), Message("assistant", tool_calls=(CALL,)), Message("tool", "12")]
    assert parts(shared.chosen) == (shown(FORMAT, FORMAT.prompt(before, [TOOL])), "yes<|im_end|>")
    call = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    assert parts(apart.chosen) == (shown(FORMAT, FORMAT.prompt(before[:1], [TOOL])), f"{call}yes<|im_end|>")
    assert parts(apart.rejected)[1] == f"{call}no<|im_end|>"
    assert apart.chosen.ids == shared.chosen.ids  # the same tokens, another mask


def test_pairs_that_cannot_be_learned_from_are_set_aside_by_reason(tmp_path):
    rows = [
        {"prompt": "hi", "chosen": "yes", "rejected": "no"},
        {"prompt": "hi", "chosen": "yes", "rejected": "yes"},
        {
            "chosen": [USER, {**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "id": "a"}]}],
            "rejected": [USER, {**CALLED, "tool_calls": [{**CALLED["tool_calls"][0], "id": "b"}]}],
        },
        {"prompt": "hi", "chosen": "yes", "rejected": " "},
        {"prompt": "hi", "chosen": "yes", "rejected": []},
        {"prompt": "hi", "chosen": "yes"},
        {"prompt": "hi", "chosen": [say("critic", "yes")], "rejected": "no"},
        {"chosen": "abc", "rejected": "xyz"},
        {"prompt": [USER, GOOD], "chosen": "yes", "rejected": "no"},
        {"prompt": [USER], "chosen": [ANSWERED, GOOD], "rejected": [BAD]},
        {"prompt": "hi", "chosen": 5, "rejected": "no"},
        {"prompt": "hi", "chosen": "yes", "rejected": "no", "tools": 5},
        [1],
    ]
    path = write(tmp_path / "p.jsonl", rows)
    path.write_text(path.read_text() + "{\n", encoding="utf-8")
    read = read_pairs(path, FORMAT)
    assert (len(read.items), read.lines) == (1, 14)
    assert read.set_aside == {
        "equal sides": 2,
        "an empty side": 2,
        "no key 'rejected'": 1,
        "unknown role 'critic'": 1,
        "an empty prompt": 1,
        "a prompt that ends with the assistant": 1,
        "an answer that does not begin with the assistant": 1,
        "neither a text nor a list of messages": 1,
        "tools that are no list of objects": 1,
        "no object": 1,
        "not JSON": 1,
    }
    with pytest.raises(DataError, match=r"holds nothing to learn from \(equal sides: 1\); expected `prompt`"):
        read_pairs(write(tmp_path / "none.jsonl", rows[1:2]), FORMAT)
    with pytest.raises(DataError, match="the file is empty"):
        read_labelled(write(tmp_path / "none.jsonl", []), FORMAT)


def test_one_side_may_go_on_where_the_other_ends(tmp_path):
    row = {"chosen": [USER, GOOD], "rejected": [USER, GOOD, USER, BAD]}
    (pair,) = read_pairs(write(tmp_path / "p.jsonl", [row]), FORMAT).items
    assert parts(pair.chosen)[1] == "yes<|im_end|>"
    assert parts(pair.rejected)[1] == "yes<|im_end|>no<|im_end|>"


def test_thumbs(tmp_path):
    rows = [
        {"prompt": "hi", "completion": "yes", "label": True},
        {"prompt": [USER], "completion": [BAD], "label": False},
        {"messages": [USER, CALLED, ANSWERED, GOOD], "tools": [TOOL], "label": True},
        {"prompt": "hi", "chosen": "yes", "rejected": "no"},
        {"prompt": "hi", "completion": "yes", "label": 1},
        {"prompt": "hi", "completion": "", "label": True},
        {"messages": [USER], "label": True},
        {"prompt": "hi", "label": True},
    ]
    read = read_labelled(write(tmp_path / "t.jsonl", rows), FORMAT)
    call = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
    assert [(parts(item.row)[1], item.good) for item in read.items] == [
        ("yes<|im_end|>", True),
        ("no<|im_end|>", False),
        (f"{call}yes<|im_end|>", True),
        ("yes<|im_end|>", True),
        ("no<|im_end|>", False),
    ]
    assert read.set_aside == {
        "label that is not true or false": 1,
        "an empty side": 2,
        "no key 'completion'": 1,
    }


def test_a_dialogue_of_several_paths_is_set_aside(tmp_path):
    fork = chat("qwen3", "fork")
    thinking = [
        {**say("assistant", "yes"), "reasoning": "hm"},
        USER,
        {**say("assistant", "so"), "reasoning": "m"},
    ]
    rows = [
        {"prompt": "hi", "chosen": thinking, "rejected": [BAD]},
        {"prompt": "hi", "chosen": "yes", "rejected": "no"},
    ]
    assert read_pairs(write(tmp_path / "p.jsonl", rows), fork).set_aside == {"several paths of tokens": 1}


def test_very_many_reasons_are_told_in_one_sentence_of_some_length(tmp_path):
    critics = [say(f"critic {n} {'x' * 500}", "") for n in range(15)]
    rows = [{"prompt": "hi", "chosen": [critic], "rejected": "no"} for critic in critics]
    with pytest.raises(DataError) as caught:
        read_pairs(write(tmp_path / "p.jsonl", rows), FORMAT)
    assert "unknown role 'critic 11 xxx" in str(caught.value)
    assert "critic 12" not in str(caught.value)
    assert "x…: 1, and 3 other reasons)" in str(caught.value)
    assert len(str(caught.value)) < 2300
