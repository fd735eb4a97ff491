"""Thoughts in a history: appended, forked or stripped."""

import pytest

from chat_kit import ASKED, CALL, MORE, TOOL, USER, chat, shown, trained
from renshu.errors import TemplateError
from renshu.types import Message

THINKING = [USER, Message("assistant", "x", reasoning="a"), MORE, Message("assistant", "y", reasoning="b")]


def test_append_keeps_thoughts_that_the_template_drops() -> None:
    format = chat("qwen3")
    assert format.behaviour.drops_thoughts
    row = format.supervised(THINKING)
    first, second = "<think>\na\n</think>\n\nx<|im_end|>", "<think>\nb\n</think>\n\ny<|im_end|>"
    assert trained(format, row) == first + second
    assert first in shown(format, row.ids)
    assert list(row.ids[: len(format.prompt(THINKING[:3]))]) == format.prompt(THINKING[:3])


def test_fork_makes_each_turn_a_path_with_the_prompt_it_saw() -> None:
    format = chat("qwen3", "fork")
    one, two = format.supervised_rows(THINKING)
    assert trained(format, one) == "<think>\na\n</think>\n\nx<|im_end|>"
    assert shown(format, two.ids) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nb\n</think>\n\ny<|im_end|>"
    )
    assert trained(format, two) == "<think>\nb\n</think>\n\ny<|im_end|>"
    with pytest.raises(TemplateError, match="supervised_rows"):
        format.supervised(THINKING)


def test_fork_stays_on_one_path_within_a_tool_loop() -> None:
    """Qwen3 keeps thoughts until the next user message."""
    thinking = [USER, Message("assistant", reasoning="a", tool_calls=(CALL,)), Message("tool", "12")]
    assert (
        len(
            chat("qwen3", "fork").supervised_rows(
                [*thinking, Message("assistant", "y", reasoning="b")], [TOOL]
            )
        )
        == 1
    )


def test_strip_removes_thoughts_at_once_also_within_a_tool_loop() -> None:
    format = chat("qwen2_5", "strip")
    thinking = [USER, Message("assistant", reasoning="a", tool_calls=(CALL,)), Message("tool", "12")]
    one, two = format.supervised_rows([*thinking, Message("assistant", "y", reasoning="b")], [TOOL])
    assert trained(format, one).startswith("<think>\na\n</think>\n\n<tool_call>")
    assert "<think>\na" not in shown(format, two.ids)
    assert trained(format, two) == "<think>\nb\n</think>\n\ny<|im_end|>"
    assert list(two.ids[: len(format.prompt(thinking, [TOOL]))]) == format.prompt(thinking, [TOOL])


def test_a_sampled_turn_without_thought_does_not_fork() -> None:
    """Qwen3 renders an empty thought into a last turn, and takes it back later: what was sampled had none."""
    format = chat("qwen3", "fork")
    path = [*format.prompt([USER]), *format.tokenizer.encode("x<|im_end|>")]
    step = format.advance(path, [USER, Message("assistant", "x")], [MORE])
    assert not step.fresh
    assert shown(format, step.ids) == "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"


def test_odd_spacing_in_a_sampled_call_does_not_fork() -> None:
    format = chat("qwen3", "fork")
    sampled = '<think>\na\n</think>\n\n<tool_call>{"name":"look_up","arguments":{"city":"Paris"}}</tool_call>'
    path = [*format.prompt(ASKED, [TOOL]), *format.tokenizer.encode(f"{sampled}<|im_end|>")]
    before = [*ASKED, format.parse(sampled).message]
    step = format.advance(path, before, [Message("tool", "12")], [TOOL])
    assert not step.fresh
    assert step.ids == format.continuation(before, [Message("tool", "12")], [TOOL])


def test_a_forked_path_is_the_prompt() -> None:
    format = chat("qwen3", "fork")
    step = format.advance([1, 2, 3], THINKING[:2], THINKING[2:3])
    assert step.fresh
    assert step.ids == format.prompt(THINKING[:3])
    assert not chat("qwen3").advance([1, 2, 3], THINKING[:2], THINKING[2:3]).fresh


def test_a_thought_that_the_prompt_opens() -> None:
    format = chat("deepseek_r1_distill")
    assert format.behaviour.opens_thought
    assert shown(format, format.prompt([USER])).endswith("<｜Assistant｜><think>\n")
    row = format.supervised(THINKING[:2])
    assert trained(format, row) == "a\n</think>\n\nx<｜end▁of▁sentence｜>"
    reply = format.parse(format.tokenizer.encode("2 and 2.\n</think>\nThe answer is 4.<｜end▁of▁sentence｜>"))
    assert (reply.reasoning, reply.content, reply.errors) == ("2 and 2.", "The answer is 4.", ())
    assert [error.kind for error in format.parse("The answer is 4.").errors] == ["unclosed_think"]
