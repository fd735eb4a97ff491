"""The client of OpenAI-compatible endpoints: retries, refusals, keys that nobody sees, odd answers."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from api_kit import listening, said, wire
from renshu.chat import ParseError
from renshu.engines.openai_chat import ChatModel, Usage, read_answer, written
from renshu.engines.openai_client import Endpoint, Patience, asked_to_wait, checked_url, key_from
from renshu.errors import ConfigError, ContextOverflow, EngineError, InfrastructureError
from renshu.types import Message, ToolCall

QUICK = Patience(at_once=2, seconds=5.0, connecting=0.3, pause=0.01)
HELLO = [{"role": "user", "content": "hello"}]
KEY = "sk-very-secret-0123"


def ask(url, *, times=1, patience=QUICK, key=None, tools=()):
    """What `times` requests gave, started together: answers or errors; and the model."""
    model = ChatModel("m", Endpoint(url, key=key, patience=patience))

    async def go():
        async with model.endpoint.open():
            replies = [model.reply(HELLO, tools, max_tokens=7, temperature=0.0) for _ in range(times)]
            return await asyncio.gather(*replies, return_exceptions=True)

    return asyncio.run(go()), model


def script(*answers):
    """The answers in turn, the last one for ever."""
    left = list(answers)
    return lambda path, body: left.pop(0) if len(left) > 1 else left[0]


def test_a_reply_its_request_and_its_tokens():
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    with listening(script(said("hi", usage=(11, 3, 8)))) as server:
        (answer,), _ = ask(f"{server.url}/v1", key=KEY, tools=[tool])
    assert (answer.reply.content, answer.cut, answer.usage) == ("hi", False, Usage(11, 3, 8))
    ((path, body, headers),) = server.asked
    assert path == "/v1/chat/completions"
    assert body == {"model": "m", "messages": HELLO, "tools": [tool], "temperature": 0.0, "max_tokens": 7}
    assert headers["authorization"] == f"Bearer {KEY}"


def test_without_tools_or_key_neither_is_sent():
    with listening(script(said("hi", usage=None))) as server:
        (answer,), _ = ask(server.url)
    assert answer.usage is None  # not told is not zero
    assert "tools" not in server.bodies[0]
    assert "authorization" not in server.asked[0][2]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 529])
def test_what_passes_is_tried_again(status):
    with listening(script((status, {"error": {"message": "busy"}}), (status, "busy"), said("hi"))) as server:
        (answer,), _ = ask(server.url)
    assert answer.reply.content == "hi"
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    "broken", ["<html>", '{"choices": []}', {"error": {"message": "upstream"}}, "[1]", '{"choices": [{}]}']
)
def test_an_answer_that_is_none_is_tried_again(broken):
    with listening(script((200, broken), said("hi"))) as server:
        (answer,), _ = ask(server.url)
    assert answer.reply.content == "hi"


def test_retry_after_is_honoured():
    with listening(script((429, "later", {"Retry-After": "0.4"}), said("hi"))) as server:
        began = time.monotonic()
        (answer,), _ = ask(server.url)
        assert 0.4 <= time.monotonic() - began < 30
    assert answer.reply.content == "hi"


def test_a_wait_longer_than_the_limit_is_not_begun():
    with listening(script((429, "later", {"Retry-After": "3600"}))) as server:
        began = time.monotonic()
        (error,), _ = ask(server.url)
        assert time.monotonic() - began < 30
    assert isinstance(error, InfrastructureError)
    assert "it answers 429: later; given up after 1 tries" in str(error)


def test_headers_that_ask_to_wait():
    assert asked_to_wait({"retry-after": "2"}) == 2
    assert asked_to_wait({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert asked_to_wait({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert asked_to_wait({"retry-after": "soon"}) is None
    assert asked_to_wait({}) is None


def test_a_silent_server_is_given_up_in_time():
    async def never(path, body):
        await asyncio.sleep(20)

    with listening(never) as server:
        began = time.monotonic()
        (error,), _ = ask(server.url, patience=Patience(at_once=1, seconds=0.5, pause=0.01))
        assert time.monotonic() - began < 30
    assert isinstance(error, InfrastructureError)
    assert "no answer in time" in str(error)


def test_nobody_there_is_noticed_and_then_nobody_waits_any_longer():
    errors, _ = ask(
        "http://127.0.0.1:9/v1", times=8, patience=Patience(at_once=1, connecting=0.1, pause=0.01)
    )
    assert [type(error) for error in errors] == [InfrastructureError] * 5 + [EngineError] * 3
    assert "http://127.0.0.1:9/v1: nobody listens there" in str(errors[0])
    assert "requests in a row were given up. Look after the server" in str(errors[7])


def test_no_more_requests_at_once_than_allowed():
    now, most = 0, 0

    async def answer(path, body):
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        return said("hi")

    with listening(answer) as server:
        answers, _ = ask(server.url, times=8, patience=Patience(at_once=3))
    assert len(answers) == 8
    assert most == 3


@pytest.mark.parametrize(
    ("status", "error", "advice"),
    [
        (401, {"message": f"Incorrect API key provided: {KEY}"}, "Check the key"),
        (403, {"message": f"no access for {KEY}"}, "Check the key"),
        (404, {"message": "no such model"}, "Check the base URL"),
        (429, {"message": "You exceeded your quota", "code": "insufficient_quota"}, "no credit left"),
    ],
)
def test_what_no_retry_heals_ends_it_at_once_and_shows_no_key(status, error, advice):
    with listening(script((status, {"error": error}))) as server:
        (problem,), _ = ask(server.url, key=KEY)
    assert isinstance(problem, ConfigError)
    assert advice in str(problem)
    assert f"answers {status}: {error['message'].replace(KEY, '***')}" in str(problem)
    assert KEY not in repr(problem)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [301, 307, 308])
def test_no_redirect_is_followed(status):
    with listening(lambda *_: said("mine now")) as other:
        there = {"location": f"{other.url}/v1?key={KEY}"}
        with listening(script((status, {}, there))) as server:
            (problem,), _ = ask(server.url, key=KEY)
        assert isinstance(problem, ConfigError)
        assert f"({status}) to {other.url}/v1?key=***: give the address itself" in str(problem)
        assert other.asked == []


def test_a_refusal_concerns_all_at_first_and_one_dialogue_later():
    bad = (400, {"error": {"message": "tools[0] is not valid", "param": "tools"}})
    with listening(script(bad)) as server:
        (error,), _ = ask(server.url)
        assert isinstance(error, ConfigError)
    assert "refuses m (400): tools[0] is not valid" in str(error)
    with listening(script(said("hi"), bad)) as server:
        (answer, error), _ = ask(server.url, times=2, patience=Patience(at_once=1))
    assert answer.reply.content == "hi"
    assert isinstance(error, InfrastructureError)


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "too long"},
        {"message": "This model's maximum context length is 4096 tokens.", "type": "BadRequestError"},
    ],
)
def test_a_dialogue_that_is_too_long(error):
    with listening(script((400, {"error": error}))) as server:
        (problem,), _ = ask(server.url)
    assert isinstance(problem, ContextOverflow)


def test_a_model_that_wants_other_names_and_no_temperature():
    def answer(path, body):
        if "max_tokens" in body:
            text = "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."
            return 400, {"error": {"message": text, "param": "max_tokens", "code": "unsupported_parameter"}}
        if "temperature" in body:
            return 400, {"error": {"message": "'temperature' does not support 0", "param": "temperature"}}
        return said("hi")

    with listening(answer) as server:
        model = ChatModel("m", Endpoint(server.url, patience=QUICK))

        async def twice():
            async with model.endpoint.open():
                return [await model.reply(HELLO, (), max_tokens=7, temperature=0.0) for _ in range(2)]

        assert [told.reply.content for told in asyncio.run(twice())] == ["hi", "hi"]
    assert [sorted(body) for body in server.bodies[-2:]] == [
        ["max_completion_tokens", "messages", "model"]
    ] * 2
    assert len(server.asked) == 4  # learned once
    assert model.notes == ["m takes no temperature: it sampled at its own, not at 0"]


def test_calls_good_and_bad_in_their_order():
    answer = read_answer(
        said(
            None,
            wire("look", '{"a": 1}', "x"),
            wire("look", '{"a": ', "x"),  # torn, and the id of another
            wire("look", '{"a": NaN}', None),
            wire("", "{}", "y"),
            wire("odd name!", "", 7),
            "nonsense",
        )
    )
    assert answer.reply.content == ""
    kinds = [a.kind if isinstance(a, ParseError) else a.name for a in answer.reply.attempts]
    assert kinds == ["look", "truncated_arguments", "non_finite", "missing_name", "odd name!", "missing_name"]
    assert answer.reply.calls[0] == ToolCall("look", {"a": 1}, "x")
    assert answer.ids == ["x", "call_1", "call_2", "y", "call_4", "call_5"]
    functions = [call["function"] for call in answer.wire["tool_calls"]]
    assert [f["name"] for f in functions] == ["look", "look", "look", "unnamed", "odd_name_", "unnamed"]
    assert json.loads(functions[1]["arguments"]) == {"unreadable": '{"a": '}  # JSON, since servers read it
    assert all(isinstance(json.loads(f["arguments"]), dict) for f in functions)


def test_replies_of_all_kinds():
    assert read_answer(said(None)).reply.content == ""
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    assert read_answer(said(parts)).reply.content == "ab"
    refused = said(None)
    refused["choices"][0]["message"] |= {"refusal": "I will not.", "reasoning_content": "Hm."}
    assert read_answer(refused).reply.content == "I will not."
    assert read_answer(refused).reply.reasoning == "Hm."
    assert "Hm." not in json.dumps(read_answer(refused).wire)
    assert [read_answer(said("x", finish=f)).cut for f in ("stop", "length", "content_filter")] == [0, 1, 1]
    with pytest.raises(ValueError, match="no list"):
        read_answer({"choices": [{"message": {"tool_calls": "x"}}]})


@pytest.mark.parametrize(
    ("usage", "read"),
    [
        (None, None),
        ({"prompt_tokens": 3}, None),
        ({"prompt_tokens": 3, "completion_tokens": True}, None),
        ({"prompt_tokens": 3, "completion_tokens": 0}, Usage(3, 0, None)),
        ({"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": None}, Usage(3, 1, None)),
        (
            {"prompt_tokens": 3, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}},
            Usage(3, 1, 0),
        ),
    ],
)
def test_usage_that_is_not_told_is_unknown(usage, read):
    assert read_answer(said("x", usage=usage)).usage == read


def test_sums_of_usage():
    assert Usage(1, 2, 1).plus(Usage(3, 4, 2)) == Usage(4, 6, 3)
    assert Usage(1, 2, 1).plus(Usage(3, 4)) == Usage(4, 6, None)


def test_solved_dialogues_get_ids():
    calls = (ToolCall("a", {"x": 1}), ToolCall("b", {}))
    shown = [
        Message("assistant", "", None, calls),
        Message("tool", "1", name="a"),
        Message("tool", "2", name="b"),
        Message("assistant", "done"),
    ]
    assistant, one, two, last = written(shown)
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 2
    assert (one, two) == tuple(
        {"role": "tool", "tool_call_id": i, "content": text} for i, text in zip(ids, "12", strict=True)
    )
    assert last == {"role": "assistant", "content": "done"}


@pytest.mark.parametrize(
    ("url", "secret", "reason"),
    [
        ("https://user:pass@host/v1", False, "no name or password"),
        ("https://host/v1?key=1", False, "nothing behind"),
        ("ftp://host/v1", False, "no address of an endpoint"),
        ("https://", False, "no address of an endpoint"),
        ("http://example.org/v1", True, "not sent over plain http"),
        ("http://host:port/v1", False, "is no address"),
    ],
)
def test_addresses_that_are_refused(url, secret, reason):
    with pytest.raises(ConfigError, match=reason) as told:
        checked_url(url, secret=secret)
    assert "pass@" not in str(told.value)


def test_addresses_that_are_taken():
    assert checked_url("https://host/v1/") == "https://host/v1"
    assert checked_url("http://127.0.0.1:8000/v1", secret=True) == "http://127.0.0.1:8000/v1"
    assert checked_url("http://[::1]:8000", secret=True) == "http://[::1]:8000"
    assert checked_url("http://localhost/v1", secret=True) == "http://localhost/v1"


def test_keys_come_from_the_environment_and_are_not_quoted(monkeypatch):
    monkeypatch.setenv("MY_KEY", f" {KEY}\n")
    assert key_from("MY_KEY") == KEY
    assert key_from(None) is None
    monkeypatch.setenv("MY_KEY", "two words")
    with pytest.raises(ConfigError, match="MY_KEY holds no key") as told:
        key_from("MY_KEY")
    assert "two words" not in str(told.value)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ConfigError, match="no key in the environment variable MY_KEY"):
        key_from("MY_KEY")
