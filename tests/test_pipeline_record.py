"""Tokens as text, and which episodes are shown."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.pipeline.recipe import Stage
from renshu.pipeline.record import best_and_worst, pieces
from renshu.types import Group, Scored, Stop, Task, Trajectory, Unscored
from tiny_models import byte_tokenizer

TOKENIZER = byte_tokenizer(None)


def test_a_character_of_several_tokens_is_shown_at_the_last():
    ids = TOKENIZER.encode("a練b", add_special_tokens=False)
    assert len(ids) == 5
    assert pieces(TOKENIZER, ids) == ["a", "", "", "練", "b"]


def test_a_byte_that_is_no_character_is_shown_by_itself():
    first_byte = TOKENIZER.encode("練", add_special_tokens=False)[0]
    b = TOKENIZER.encode("b", add_special_tokens=False)[0]
    assert pieces(TOKENIZER, [first_byte, b]) == ["\ufffd", "b"]
    assert pieces(TOKENIZER, [b, first_byte]) == ["b", "\ufffd"]


@settings(max_examples=60, deadline=None)
@given(st.text(st.characters(exclude_characters="\ufffd", codec="utf-8"), max_size=12))
def test_pieces_spell_the_text_one_a_token(text):
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    found = pieces(TOKENIZER, ids)
    assert len(found) == len(ids)
    assert "".join(found) == TOKENIZER.decode(ids, skip_special_tokens=False)


def trajectory(score):
    return Trajectory(Task("t"), (), (), Stop.ANSWERED, score)


def test_best_and_worst():
    low, high, unknown = trajectory(Scored(0.0)), trajectory(Scored(1.0)), trajectory(Unscored("x"))
    assert best_and_worst(Group(Task("t"), (unknown, low, high))) == [high, low]
    assert best_and_worst(Group(Task("t"), (high, unknown))) == [high]
    assert best_and_worst(Group(Task("t"), (unknown, unknown))) == [unknown]


@pytest.mark.parametrize(
    ("algorithm", "settings", "within"),
    [
        ("grpo", {}, True),
        ("grpo", {"baseline": "none"}, False),
        ("dpo", {}, True),
        ("kto", {}, False),
        ("ppo", {}, False),
    ],
)
def test_where_rollouts_are_compared(algorithm, settings, within):
    """Elsewhere a group of equal rewards is trained on, and is counted so."""
    assert Stage(name="a", **{algorithm: settings}).within_groups is within
