"""ChatFormat against transformers and TRL on real templates, and the ways in which templates go wrong."""

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_kit import (
    ASKED,
    DIALOGUE,
    IGNORING,
    MORE,
    NATIVE,
    TOOL,
    USER,
    chat,
    shown,
    trained,
    wire,
)
from chat_tokenizers import byte_level, template
from renshu.chat import ChatFormat, qwen2_5
from renshu.chat.jinja import JinjaTemplate
from renshu.errors import DataError, TemplateError
from renshu.types import Message, ToolCall

# --- oracles ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_prompts_with_tools_are_those_of_transformers(name: str) -> None:
    format = chat(name, "fork", today=date.today())
    messages = [*DIALOGUE, MORE]
    ids = format.tokenizer.apply_chat_template(
        wire(messages), [TOOL], chat_template=template(name), add_generation_prompt=True
    )["input_ids"]
    assert format.prompt(messages, [TOOL]) == ids


@pytest.mark.parametrize("name", [*NATIVE, *IGNORING])
def test_prompts_without_tools_are_those_of_transformers(name: str) -> None:
    format = chat(name, "fork", today=date.today())
    messages = [USER, Message("assistant", "ok"), MORE]
    ids = format.tokenizer.apply_chat_template(
        wire(messages), chat_template=template(name), add_generation_prompt=True
    )["input_ids"]
    assert format.prompt(messages) == ids


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "qwen3_instruct_2507", "gemma", "gemma3", "phi3"])
def test_the_mask_is_that_of_trls_training_templates(name: str) -> None:
    """Theirs also trains the newline behind a turn's end (and before its body), which nobody samples."""
    format = chat(name)
    tools = [TOOL] if name in NATIVE else None
    messages = DIALOGUE if tools else [USER, Message("assistant", "ok"), MORE, Message("assistant", "done")]
    theirs = format.tokenizer.apply_chat_template(
        wire(messages),
        tools,
        chat_template=template(f"{name}_training"),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    row = format.supervised(messages, tools)
    assert tuple(theirs["input_ids"][: len(row.ids)]) == row.ids
    differing = {
        shown(format, [token])
        for token, ours, mask in zip(row.ids, row.trained, theirs["assistant_masks"], strict=False)
        if ours != bool(mask)
    }
    assert differing == {"\n"}
    assert all(mask for ours, mask in zip(row.trained, theirs["assistant_masks"], strict=False) if ours)


# --- what is trained -------------------------------------------------------------------------------


def test_body_and_end_of_each_turn_are_trained_and_nothing_else() -> None:
    format = chat("qwen2_5")
    row = format.supervised(DIALOGUE, [TOOL])
    call = '<tool_call>\n{"name": "look_up", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert trained(format, row) == f"{call}<|im_end|>ok<|im_end|>"
    assert shown(format, row.ids).endswith(
        f"<|im_start|>assistant\n{call}<|im_end|>\n<|im_start|>user\n<tool_response>\n12\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\nok<|im_end|>"
    )


@pytest.mark.parametrize("name", [*NATIVE, *IGNORING])
@pytest.mark.parametrize("thoughts", ["append", "fork", "strip"])
def test_every_turn_is_trained_once_with_its_stop_token(name: str, thoughts: str) -> None:
    format = chat(name, thoughts)
    thinking = Message("assistant", "done", reasoning="I know")
    rows = format.supervised_rows([*DIALOGUE, MORE, thinking], [TOOL])
    end = format.tokenizer.convert_tokens_to_ids(format.behaviour.turn_end)
    ends = [token == end for row in rows for token, on in zip(row.ids, row.trained, strict=True) if on]
    assert sum(ends) == 3
    for row in rows:
        assert row.ids[-1] == end
        assert row.trained[-1]
    assert end in format.stop_ids


def test_the_turns_end_is_trained_even_if_it_is_the_padding_or_eos_token() -> None:
    tokenizer = byte_level(eos="<|im_end|>")
    tokenizer.pad_token = "<|im_end|>"
    format = ChatFormat(tokenizer, template("qwen2_5"))
    row = format.supervised([USER, Message("assistant", "ok")])
    assert trained(format, row) == "ok<|im_end|>"
    assert row.ids.count(tokenizer.pad_token_id) == 3  # system, user, assistant: told apart by place


def test_gemma_learns_its_own_turn_end_and_not_the_tokenizers() -> None:
    format = chat("gemma")
    assert trained(format, format.supervised([USER, Message("assistant", "ok")])) == "ok<end_of_turn>"
    ends = format.tokenizer.convert_tokens_to_ids(["<end_of_turn>", "<|endoftext|>"])
    assert format.stop_ids == frozenset(ends)


def test_a_dialogue_without_a_turn_to_train_is_an_error() -> None:
    with pytest.raises(DataError, match="no assistant message"):
        chat("qwen2_5").supervised(ASKED)


def test_a_template_that_never_ends_a_turn_is_an_error() -> None:
    endless = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    with pytest.raises(TemplateError, match="never learn to stop"):
        ChatFormat(byte_level(), endless)


# --- prefixes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*NATIVE, *IGNORING])
def test_an_episode_is_a_row_and_each_prompt_a_prefix(name: str) -> None:
    format = chat(name)
    row = format.supervised(DIALOGUE, [TOOL])
    assert list(row.ids[: len(format.prompt(ASKED, [TOOL]))]) == format.prompt(ASKED, [TOOL])
    second = format.prompt(DIALOGUE[:4], [TOOL])
    assert list(row.ids[: len(second)]) == second


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3_instruct_2507", "llama3_1", "phi3", "gemma3"])
def test_the_continuation_keeps_the_newline_and_ends_in_the_header(name: str) -> None:
    format = chat(name)
    start, step = format.prompt(ASKED, [TOOL]), format.continuation(DIALOGUE[:3], [DIALOGUE[3]], [TOOL])
    text = shown(format, step)
    header = shown(format, start)[shown(format, start).rindex(format.behaviour.turn_end) :]
    assert (format.behaviour.turn_end + text).endswith(header)
    if name == "qwen2_5":
        assert (
            text
            == "\n<|im_start|>user\n<tool_response>\n12\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        )
        whole = format.tokenizer.encode(format.text(DIALOGUE[:4], [TOOL]), add_special_tokens=False)
        assert whole[-len(step) :] == step


REWRITING = """{%- for m in messages -%}
{{ '<|im_start|>' + m.role + (' old' if not loop.last and m.role == 'assistant' else '') + '\n' }}
{{- m.content + '<|im_end|>\n' }}
{%- endfor -%}{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"""


def test_a_template_that_rewrites_history_is_refused() -> None:
    format = ChatFormat(byte_level(), REWRITING)
    with pytest.raises(TemplateError, match="rewrites history"):
        format.continuation([USER, Message("assistant", "ok")], [MORE])


# --- round trip ------------------------------------------------------------------------------------

WORD = st.text("abcé天 \n.", min_size=1, max_size=12).map(str.strip).filter(bool)
ARGUMENTS = st.dictionaries(
    st.sampled_from(["a", "b"]), st.integers() | WORD | st.just("</tool_call> <|im_end|>")
)
TURNS = st.builds(
    lambda content, reasoning, calls: Message(
        "assistant", content, reasoning=reasoning, tool_calls=tuple(calls)
    ),
    st.just("") | WORD | st.just("a <|im_end|> b"),
    st.none() | WORD,
    st.lists(st.builds(ToolCall, st.just("look_up"), ARGUMENTS), max_size=2),
)


@pytest.mark.parametrize("name", [*NATIVE, *IGNORING])
@settings(max_examples=25, deadline=None)
@given(turn=TURNS)
def test_what_is_rendered_is_read_back(name: str, turn: Message) -> None:
    format = chat(name)
    row = format.supervised([*ASKED, turn], [TOOL])
    body = [token for token, on in zip(row.ids, row.trained, strict=True) if on]
    reply = format.parse(body)
    assert reply.message == turn
    assert reply.errors == ()


@pytest.mark.parametrize("name", [*NATIVE, *IGNORING])
def test_arguments_are_one_json_object_and_no_content_is_no_text(name: str) -> None:
    text = shown(chat(name), chat(name).supervised(DIALOGUE, [TOOL]).ids)
    assert text.count('{"city": "Paris"}') == 1
    assert "None" not in text
    assert '\\"' not in text


# --- the rest --------------------------------------------------------------------------------------


def test_what_templates_do_is_observed() -> None:
    behaviours = {name: chat(name).behaviour for name in (*NATIVE, *IGNORING)}
    assert [b.tools for b in behaviours.values()] == ["native"] * len(NATIVE) + ["prompt"] * len(IGNORING)
    assert {name for name, b in behaviours.items() if b.dialect.name == "llama3"} == {"llama3_1", "llama3_2"}
    assert {name for name, b in behaviours.items() if b.alternates} == {"gemma", "gemma3"}
    assert {name for name, b in behaviours.items() if not b.parallel_calls} == {"llama3_1", "llama3_2"}
    dropping = {"qwen3", "deepseek_r1_distill", "qwen3_5_think"}
    assert {name for name, b in behaviours.items() if b.drops_thoughts} == dropping


def test_qwens_template_is_byte_for_byte() -> None:
    assert qwen2_5() == template("qwen2_5")


def test_the_fingerprint_tells_formats_apart() -> None:
    prints = [
        chat(name, thoughts).fingerprint for name in ("qwen2_5", "qwen3") for thoughts in ("append", "fork")
    ]
    assert len(set(prints)) == 4
    assert chat("qwen3").fingerprint == prints[2]
    assert (
        ChatFormat(byte_level(eos="<|im_end|>"), template("qwen3")).fingerprint != prints[2]
    )  # other stop tokens


def test_stop_tokens_of_the_checkpoint_stop_too() -> None:
    format = chat("qwen2_5", eos_ids=[5])
    assert format.stop_ids >= {5}


def test_what_a_template_refuses_says_so() -> None:
    with pytest.raises(TemplateError, match=r"\(assistant\).*must alternate"):
        chat("gemma").text([Message("assistant", "ok")])
    with pytest.raises(TemplateError, match="line 1"):
        ChatFormat(byte_level(), "{% if %}")


@pytest.mark.parametrize("name", ["qwen2_5", "gemma3"])
def test_text_for_people_reads_as_the_prompt_does(name: str) -> None:
    format = chat(name)
    asked = [USER, Message("assistant", "ok"), Message("user", "what is <|im_end|>?")]
    assert format.text(asked) == shown(format, format.prompt(asked))
    assert format.text(asked[:2], prompt=False).rstrip().endswith(f"ok{format.behaviour.turn_end}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_in_any_way_is_a_template_error(source: str) -> None:
    with pytest.raises(TemplateError, match="refused the messages"):
        JinjaTemplate(source).render([{"role": "user", "content": "x"}])
