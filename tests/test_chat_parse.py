"""Replies → thought, text, calls: one test per way in which readers of calls have failed elsewhere."""

import keyword
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from renshu.chat import ParseError, Reply, parse_reply
from renshu.chat.arguments import Malformed, decode_arguments
from renshu.chat.hermes import Hermes
from renshu.chat.llama3 import Llama3
from renshu.chat.pythonic import Pythonic
from renshu.types import ToolCall

HERMES, LLAMA, PYTHONIC = Hermes(), Llama3(), Pythonic()


def hermes(text: str, **options: bool) -> Reply:
    return parse_reply(text, HERMES, **options)


def kinds(reply: Reply) -> list[str]:
    return [error.kind for error in reply.errors]


def kind_of(arguments: object) -> object:
    try:
        return decode_arguments(arguments)
    except Malformed as error:
        return error.kind


# --- Hermes / Qwen --------------------------------------------------------------------------------


def test_text_thought_and_two_calls_in_order() -> None:
    reply = hermes(
        "<think>\nfirst a, then b\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>'
    )
    assert reply == Reply("I look.", "first a, then b", (ToolCall("a", {"x": 1}), ToolCall("b", {})))


def test_single_quotes_are_an_error_and_never_repaired() -> None:
    reply = hermes("""<tool_call>{'name': 'search', 'arguments': {'q': "it's here", 'n': 3}}</tool_call>""")
    assert reply.calls == ()
    assert kinds(reply) == ["bad_json"]


def test_a_closing_tag_inside_a_string_is_text() -> None:
    text = '<tool_call>{"name":"write","arguments":{"text":"close with </tool_call> please"}}</tool_call>'
    assert hermes(text).attempts == (ToolCall("write", {"text": "close with </tool_call> please"}),)


def test_unbalanced_braces_inside_a_string_are_text() -> None:
    text = '<tool_call>{"name":"bash","arguments":{"cmd":"mkdir -p t/{a,b"}}</tool_call>'
    assert hermes(text).attempts == (ToolCall("bash", {"cmd": "mkdir -p t/{a,b"}),)


def test_a_draft_inside_a_thought_does_not_run() -> None:
    call = '<tool_call>{"name":"pay","arguments":{"eur":10}}</tool_call>'
    reply = hermes(f"<think>I could {call} but check</think>{call}")
    assert reply.attempts == (ToolCall("pay", {"eur": 10}),)
    assert reply.reasoning == f"I could {call} but check"


def test_a_draft_inside_a_second_thought_does_not_run_either() -> None:
    draft = '<tool_call>{"name":"pay","arguments":{}}</tool_call>'
    reply = hermes(f"<think>one</think>\n\nHm. <think>two {draft}</think>\n\nNo.")
    assert reply == Reply("Hm. No.", f"one\n\ntwo {draft}")


def test_a_call_in_a_thought_without_end_is_named_and_not_run() -> None:
    reply = hermes(
        '<think>need weather <tool_call>{"name":"weather","arguments":{"city":"Paris"}}</tool_call>'
    )
    assert reply.calls == ()
    assert kinds(reply) == ["call_inside_unclosed_think"]
    assert kinds(hermes("<think>hm")) == ["unclosed_think"]


def test_think_tags_inside_a_call_are_text() -> None:
    text = '<tool_call>{"name":"write","arguments":{"text":"<think>x</think>"}}</tool_call>'
    assert hermes(text) == Reply("", None, (ToolCall("write", {"text": "<think>x</think>"}),))


def test_a_thought_that_the_prompt_opened() -> None:
    reply = hermes("2 and 2.\n</think>\nThe answer is 4.", thought_open=True)
    assert reply == Reply("The answer is 4.", "2 and 2.")
    assert kinds(hermes("2 and 2. The answer is 4.", thought_open=True)) == ["unclosed_think"]
    assert hermes("<think>\n2 and 2.\n</think>\nThe answer is 4.", thought_open=True) == reply


def test_an_empty_thought_is_none() -> None:
    assert hermes("<think>\n\n</think>\n\nyes") == Reply("yes", None)


def test_each_attempt_gets_its_place() -> None:
    reply = hermes(
        '<tool_call>{"name": "add", "arguments": "[1,2]"}</tool_call>'
        '<tool_call>{"name": "add", "arguments": "7"}</tool_call>'
        '<tool_call>{"name": "add", "arguments": ""}</tool_call>'
        '<tool_call>{"name": "add", "arguments": "{\\"a\\":1,\\"b\\":2}"}</tool_call>'
    )
    shown = [a.kind if isinstance(a, ParseError) else a.arguments for a in reply.attempts]
    assert shown == ["not_an_object", "not_an_object", {}, {"a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('<tool_call>{"name": "get_weather"}</tool_call>', "missing_arguments"),
        ('<tool_call>{"arguments": {}}</tool_call>', "missing_name"),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', "missing_name"),
        ('<tool_call>[{"name": "f", "arguments": {}}]</tool_call>', "not_an_object"),
        ('<tool_call>{"name": "f", "arguments": {"cmd": "ls", "timeout": 30', "truncated_arguments"),
        ('<tool_call>{"name": "f", "arguments": {"path": "a.txt", "content": "abc', "truncated_arguments"),
        ("<tool_call>", "truncated_arguments"),
        ('<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "f", "arguments": {}}}</tool_call>', "bad_json"),
        ('<tool_call>{"name": "f", "arguments": {}}', "unclosed_call"),
        ('```json\n{"name":"search","arguments":{"q":"cats"}}\n```', "fenced_call"),
        ('<tool_call>{"name": "f", "arguments": ' + '{"a":' * 100_000, "bad_json"),
        ('<tool_call>{"name": "f", "arguments": {"n": ' + "9" * 5000 + "}}</tool_call>", "bad_json"),
    ],
)
def test_malformed_calls_have_names_and_do_not_run(text: str, kind: str) -> None:
    reply = hermes(text)
    assert (reply.calls, kinds(reply)) == ((), [kind])
    assert reply.content == text  # nothing that the model wrote is lost


def test_a_fence_in_prose_is_not_a_call() -> None:
    text = 'Write this:\n```json\n{"name":"search","arguments":{"q":"cats"}}\n```'
    assert hermes(text) == Reply(text)
    assert hermes('```json\n{"name": "Bob"}\n```').errors == ()


def test_a_good_call_after_a_bad_one_still_runs() -> None:
    reply = hermes(
        '<tool_call>{bad}</tool_call>\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    )
    assert [type(attempt) for attempt in reply.attempts] == [ParseError, ToolCall]
    assert reply.content == "<tool_call>{bad}</tool_call>"


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}),
        ('{"a": NaN}', "non_finite"),
        ('{"a": -Infinity}', "non_finite"),
        ('{"a": 1e999}', "non_finite"),
        ('{"a":1,"a":2}', "duplicate_key"),
        ('{"a": "x\ny"}', "bad_json"),
        ('\ufeff{"a":1}', {"a": 1}),
        ('{"a":1} {"b":2}', "bad_json"),
        ('"{}"', "not_an_object"),
        (None, "not_an_object"),
        ('{"a": "\\ud800"}', "bad_json"),
        ('{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        ('{"cmd": "ls", "timeout": 30', "truncated_arguments"),
    ],
)
def test_arguments_are_read_strictly(arguments: object, expected: object) -> None:
    assert kind_of(arguments) == expected


# --- Llama ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "f", "parameters": {"a": "x"}}',
        '<|python_tag|>{"name": "f", "parameters": {"a": "x"}}',
        '{"type": "function", "name": "f", "parameters": {"a": "x"}}',
        '<function=f>{"a": "x"}</function>',
        "[f(a='x')]",
        "<|python_tag|>[f(a='x')]",
        '{"name": "f", "arguments": {"a": "x"}}',
    ],
)
def test_llamas_ways_to_call(text: str) -> None:
    assert parse_reply(text, LLAMA) == Reply("", None, (ToolCall("f", {"a": "x"}),))


def test_llama_calls_in_a_row() -> None:
    two = (ToolCall("f", {"a": 1}), ToolCall("g", {}))
    text = '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}'
    assert parse_reply(text, LLAMA).attempts == two
    assert parse_reply('<function=f>{"a": 1}</function><function=g>{}</function>', LLAMA).attempts == two


def test_llama_text_before_a_call_and_json_answers() -> None:
    reply = parse_reply('I look.\n<|python_tag|>{"name": "f", "parameters": {}}', LLAMA)
    assert reply == Reply("I look.", None, (ToolCall("f", {}),))
    assert parse_reply('{"total": 3}', LLAMA) == Reply('{"total": 3}')
    assert parse_reply('See {"name": "f", "parameters": {}}', LLAMA).attempts == ()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('{"name": "f"}', "missing_arguments"),
        ('{"name": "f", "parameters": {"a": ', "truncated_arguments"),
        ('{"name": "f", "parameters": {}} and more', "bad_json"),
        ('<function=f>{"a": 1}', "unclosed_call"),
        ('<function=f>{"a": 1', "truncated_arguments"),
        ("<function=>{}</function>", "missing_name"),
    ],
)
def test_llama_errors(text: str, kind: str) -> None:
    reply = parse_reply(text, LLAMA)
    assert kinds(reply) == [kind]
    assert reply.content == text.strip()


# --- Python-style ---------------------------------------------------------------------------------


def pythonic(text: str) -> Reply:
    return parse_reply(text, PYTHONIC)


def test_pythonic_values() -> None:
    text = "[a.b(x='it\\'s', y=2*3, z=-1.5, l=[1, (2,)], d={'k': None}, t=True), g()]"
    first = {"x": "it's", "y": 6, "z": -1.5, "l": [1, [2]], "d": {"k": None}, "t": True}
    assert pythonic(text) == Reply("", None, (ToolCall("a.b", first), ToolCall("g", {})))


def test_a_dict_by_position_is_the_arguments() -> None:
    assert pythonic("\n\n[area({'base': 10, 'height': 5})]").attempts == (
        ToolCall("area", {"base": 10, "height": 5}),
    )


@pytest.mark.parametrize(
    "text",
    [
        "[f(x=__import__('os').getpid(), y=2*3)]",
        "[f(x=open)]",
        "[f(1)]",
        "[f(**{'a': 1})]",
        "[f(x=9**9)]",
        "[f(x='a'*3)]",
        "[f(x=1/0)]",
        "[f(x=[i for i in ()])]",
        "[f(x=f'{1}')]",
        "[f(x=b'1')]",
        "[f(x=1j)]",
        "[f()()]",
        "[f(x=" + "[" * 500 + "]" * 500 + ")]",
    ],
)
def test_nothing_but_literals_is_read(text: str) -> None:
    reply = pythonic(text)
    assert (reply.calls, kinds(reply)) == ((), ["decode_error"])


def test_no_call_is_no_call() -> None:
    for text in ("Sorry, no tool fits.", "[]", "hi", "[1, 2]", "see [f](x)"):
        assert pythonic(text) == Reply(text)
    assert len(pythonic("[get_weather(city='Rome')]").calls) == 1


def test_pythonic_non_finite() -> None:
    assert kinds(pythonic("[f(x=1e999)]")) == ["non_finite"]


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", [HERMES, LLAMA, PYTHONIC], ids=lambda dialect: dialect.name)
@pytest.mark.parametrize(
    "text",
    [
        "[search(" + ", ".join(f"a{i}=1" for i in range(22)),
        "[search(" * 5000,
        "<tool_call>" * 5000,
        "<tool_call>{" * 5000,
        '<tool_call>{"a' * 5000,
        "<think>" * 5000,
        "<think></think>" * 5000,
        "<tool_call>" + " " * 20000,
        "<function=" * 5000,
        "<function=f>" * 5000,
        "<|python_tag|>" * 5000,
        '{"name":' * 5000,
        "```" * 5000,
    ],
    ids=range(13),
)
def test_hostile_text_is_read_in_time(text: str, dialect: Hermes | Llama3 | Pythonic) -> None:
    start = time.perf_counter()
    assert parse_reply(text, dialect).calls == ()
    assert time.perf_counter() - start < 10


PLAIN = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN, inner, max_size=3),
    max_leaves=6,
)
NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)
CALLS = st.lists(
    st.builds(ToolCall, NAMES, st.dictionaries(NAMES, VALUES, max_size=3)), min_size=1, max_size=3
)


@pytest.mark.parametrize("dialect", [HERMES, LLAMA], ids=lambda dialect: dialect.name)
@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_what_is_spelled_is_read_back(dialect: Hermes | Llama3, calls: list[ToolCall]) -> None:
    assert dialect.read(dialect.spell(tuple(calls), after_text=False)) == ("", tuple(calls))


@settings(max_examples=60, deadline=None)
@given(calls=CALLS)
def test_pythonic_is_read_back_too(calls: list[ToolCall]) -> None:
    if not any(keyword.iskeyword(word) for call in calls for word in (call.name, *call.arguments)):
        assert PYTHONIC.read(PYTHONIC.spell(tuple(calls), after_text=False)) == ("", tuple(calls))


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from(list('<>/{}[]()"\\:,=ftolcahink_| \n1aé')), max_size=60))
def test_any_text_is_read_without_an_exception(text: str) -> None:
    for dialect in (HERMES, LLAMA, PYTHONIC):
        for opened in (False, True):
            reply = parse_reply(text, dialect, thought_open=opened)
            assert len(reply.calls) + len(reply.errors) == len(reply.attempts)


def test_arguments_that_nest_too_deeply_are_an_error_and_no_crash() -> None:
    def nested(depth: int) -> Reply:
        return hermes(
            f'<tool_call>{{"name": "a", "arguments": {{"x": {"[" * depth}{"]" * depth}}}}}</tool_call>'
        )

    assert len(nested(98).calls) == 1  # with the call and its arguments: 100
    for depth in (99, 900, 100_000):
        assert nested(depth).errors == (ParseError("bad_json", "nested too deeply"),)
    listed = hermes(f'<tool_call>{{"name": "a", "arguments": {"[" * 990}{"]" * 990}}}</tool_call>')
    assert kinds(listed) == ["bad_json"]


def test_python_calls_of_hostile_values() -> None:
    start = time.perf_counter()
    product = "*".join(["9" * 4000] * 400)
    for text, kind in {
        f"[f(x={product})]": "decode_error",
        "[f(x='\\ud800')]": "decode_error",
        "[f(x={'\\udfff': 1})]": "decode_error",
        "[f(x=1, x=2)]": "duplicate_key",
    }.items():
        assert kinds(parse_reply(text, PYTHONIC)) == [kind]
    assert time.perf_counter() - start < 10
    assert parse_reply("[f(x=2**3)]", PYTHONIC).calls == ()
    assert parse_reply("[f(x=99999999999*99999999999)]", PYTHONIC).calls == (
        ToolCall("f", {"x": 9999999999800000000001}),
    )
