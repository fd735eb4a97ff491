"""What may be shown of a turn while it grows: certain from the first character on, no piece of a call."""

import pytest

from renshu.chat.hermes import Hermes
from renshu.chat.llama3 import Llama3
from renshu.chat.parse import parse_reply, settled_content
from renshu.chat.pythonic import Pythonic

HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>'
LLAMA = '<|python_tag|>{"name": "f", "parameters": {}}'
TURNS = {
    "prose": (Hermes(), "  Hello,  world \n", "Hello,  world"),
    "nearly a call": (Hermes(), "a < b <tool_calm> <", "a < b <tool_calm> <"),
    "a call behind text": (Hermes(), f"I look.\n{HERMES}", "I look."),
    "text between calls": (Hermes(), f"One\n{HERMES}\ntwo {HERMES} three", "One\n\ntwo  three"),
    "a thought before": (Hermes(), f"<think>\n{HERMES}\n</think>\n\nSo.{HERMES}", "So."),
    "a thought in the middle": (Hermes(), "So <think>hm</think> be it", "So  be it"),
    "a thought that never ends": (Hermes(), "So <think>hm", "So"),
    "llama's tag": (Llama3(), f"I look. {LLAMA}", "I look."),
    "llama's bare call": (Llama3(), '{"name": "f", "parameters": {}}', ""),
    "llama's function": (Llama3(), "Hm <function=f>{}</function>", "Hm"),
    "an answer in JSON": (Llama3(), '{"room": 5} is it', '{"room": 5} is it'),
    "llama's list": (Llama3(), "[f(a=1)]", ""),
    "a pythonic call": (Pythonic(), " [f(a=1)]", ""),
    "a list in prose": (Pythonic(), "see [f(a=1)]", "see [f(a=1)]"),
    "only a list": (Pythonic(), "[1, 2]", "[1, 2]"),
}


@pytest.mark.parametrize("name", TURNS)
def test_every_beginning_shows_a_beginning_of_the_content(name):
    dialect, text, content = TURNS[name]
    assert parse_reply(text, dialect).content == content
    shown = ""
    for length in range(len(text) + 1):
        now = settled_content(text[:length], dialect)
        assert now.startswith(shown)
        shown = now
    assert content.startswith(shown)


def test_plain_text_is_shown_at_once_but_for_what_may_become_a_marker():
    assert settled_content("Good day. 1 <", Hermes()) == "Good day. 1"
    assert settled_content("Good day. 1 <t", Hermes()) == "Good day. 1"
    assert settled_content("Good day. 1 <tx", Hermes()) == "Good day. 1 <tx"
    assert settled_content("hm", Hermes(), thought_open=True) == ""
    assert settled_content("hm</think>\n\nSo", Hermes(), thought_open=True) == "So"
