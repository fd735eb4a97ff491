"""What the endpoint refuses: every kind of nonsense gets a 4xx in OpenAI's form, with a reason."""

import asyncio
import json

from renshu.serve.http import BODY
from renshu.types import Message
from rollout_kit import CHAT, engine
from serve_kit import CALLED, HELLO, WEATHER, ask, fake, in_process

USER = {"role": "user", "content": "hi"}
ASKED = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": CALLED}]}
DEEP = "[" * 200 + "]" * 200


def tool(**changes):
    return {"tools": [{"type": "function", "function": {**WEATHER["function"], **changes}}]}


REFUSED = {
    "unknown model": (404, {"model": "gpt-4"}, "'fake'"),
    "model no text": (400, {"model": 7}, "model"),
    "messages empty": (400, {"messages": []}, "messages"),
    "messages text": (400, {"messages": "hi"}, "messages"),
    "message text": (400, {"messages": ["hi"]}, "messages[0]"),
    "unknown role": (400, {"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
    "no role": (400, {"messages": [{"content": "x"}]}, "messages[0].role"),
    "role a list": (400, {"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    "no content": (400, {"messages": [{"role": "user"}]}, "messages[0].content"),
    "content a number": (400, {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    "an image": (400, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
    "answer without call id": (
        400,
        {"messages": [USER, ASKED, {"role": "tool", "content": "1"}]},
        "tool_call_id",
    ),
    "answer to nothing": (
        400,
        {"messages": [USER, {"role": "tool", "content": "1", "tool_call_id": "b"}]},
        "messages[1].tool_call_id",
    ),
    "call unanswered": (400, {"messages": [USER, ASKED, USER]}, "no answer yet"),
    "ends with the assistant": (400, {"messages": [USER, {"role": "assistant", "content": "x"}]}, "own"),
    "call of the user": (400, {"messages": [{**USER, "tool_calls": ASKED["tool_calls"]}]}, "tool_calls"),
    "arguments no JSON": (
        400,
        {"messages": [{**ASKED, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}]},
        "arguments",
    ),
    "arguments an object": (
        400,
        {"messages": [{**ASKED, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {}}}]}]},
        "expected JSON text",
    ),
    "tools an object": (400, {"tools": WEATHER}, "tools"),
    "tool text": (400, {"tools": ["weather"]}, "tools[0]"),
    "tool without name": (400, tool(name=""), "tools[0].function.name"),
    "tool twice": (400, {"tools": [WEATHER, WEATHER]}, "twice"),
    "parameters a list": (400, tool(parameters=[]), "tools[0].function.parameters"),
    "tool_choice required": (400, {"tools": [WEATHER], "tool_choice": "required"}, "tool_choice"),
    "tool_choice named": (
        400,
        {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        "tool_choice",
    ),
    "max_tokens huge": (400, {"max_tokens": 10**12}, "8192"),
    "max_tokens zero": (400, {"max_tokens": 0}, "max_tokens"),
    "max_tokens text": (400, {"max_tokens": "ten"}, "max_tokens"),
    "max_tokens half": (400, {"max_tokens": 1.5}, "max_tokens"),
    "temperature below 0": (400, {"temperature": -1}, "temperature"),
    "temperature true": (400, {"temperature": True}, "temperature"),
    "top_p zero": (400, {"top_p": 0}, "top_p"),
    "top_k huge": (400, {"top_k": 10**30}, "top_k"),
    "n zero": (400, {"n": 0}, "n:"),
    "n huge": (400, {"n": 10**6}, "n:"),
    "seed text": (400, {"seed": "x"}, "seed"),
    "stop empty": (400, {"stop": [""]}, "stop"),
    "stop number": (400, {"stop": 3}, "stop"),
    "stream text": (400, {"stream": "yes"}, "stream"),
    "unknown key": (400, {"max_token": 5}, "did you mean 'max_tokens'"),
    "JSON mode": (400, {"response_format": {"type": "json_object"}}, "response_format"),
    "bias": (400, {"logit_bias": {"5": 1}}, "logit_bias"),
    "prompt too long": (400, {"messages": [{"role": "user", "content": "x" * 9000}]}, "8192 tokens"),
    "prompt far too long": (400, {"messages": [{"role": "user", "content": "x" * 2**21}]}, "8192 tokens"),
    "too many messages": (400, {"messages": [USER] * 9000}, "8192 tokens"),
}


def test_nonsense_is_refused_with_a_reason():
    async def send(client):
        return {
            name: await client.post("/v1/chat/completions", json={**HELLO, **body})
            for name, (_, body, _) in REFUSED.items()
        }

    responses = in_process(fake(engine(lambda _: "x")), send)
    wrong = {
        name: (response.status_code, response.text[:200])
        for name, response in responses.items()
        if response.status_code != REFUSED[name][0]
        or REFUSED[name][2] not in response.json()["error"]["message"]
    }
    assert wrong == {}
    for response in responses.values():
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert len(response.text) < 800
    assert responses["unknown model"].json()["error"]["code"] == "model_not_found"
    assert responses["prompt too long"].json()["error"]["code"] == "context_length_exceeded"
    assert responses["unknown role"].json()["error"]["param"] == "messages"


RAW = {
    "no JSON": (400, b"hello"),
    "nothing": (400, b""),
    "half": (400, b'{"model": "fake", "messages": ['),
    "a list": (400, b"[1, 2]"),
    "null": (400, b"null"),
    "more behind it": (400, json.dumps(HELLO).encode() + b"{}"),
    "not UTF-8": (400, b'{"model": "\xff\xfe"}'),
    "NaN": (400, json.dumps(HELLO).encode()[:-1] + b', "temperature": NaN}'),
    "endless number": (400, b'{"seed": ' + b"9" * 10000 + b"}"),
    "a key twice": (400, b'{"model": "fake", "model": "fake", "messages": []}'),
    "half a character": (400, b'{"model": "fake", "messages": [{"role": "user", "content": "\\ud800"}]}'),
    "deep": (400, f'{{"model": "fake", "messages": {DEEP}}}'.encode()),
    "bottomless": (400, b"[" * 100_000),
    "too large": (413, b'"' + b"x" * BODY + b'"'),
}


def test_broken_bodies_are_refused():
    async def send(client):
        json_type = {"content-type": "application/json"}
        sent = {
            name: await client.post("/v1/chat/completions", content=body, headers=json_type)
            for name, (_, body) in RAW.items()
        }
        sent["form"] = await client.post("/v1/chat/completions", data={"model": "fake"})
        return sent

    responses = in_process(fake(engine(lambda _: "x")), send)
    expected = {name: status for name, (status, _) in RAW.items()} | {"form": 415}
    assert {name: response.status_code for name, response in responses.items()} == expected
    assert all(response.json()["error"]["type"] == "invalid_request_error" for response in responses.values())


def test_a_key_is_asked_for_and_foreign_names_are_not_answered():
    async def send(client):
        url = "/v1/chat/completions"
        return [
            (await client.post(url, json=HELLO)).status_code,
            (await client.post(url, json=HELLO, headers={"Authorization": "Bearer wrong"})).status_code,
            (await client.post(url, json=HELLO, headers={"Authorization": "Bearer s3cret"})).status_code,
            (await client.get("/v1/models")).status_code,
            *[(await client.get("/v1/models", headers={"Host": host})).status_code for host in FOREIGN],
            *[(await client.get("/health", headers={"Host": host})).status_code for host in FOREIGN],
            *[(await client.get("/v1/models", headers={"Host": host})).status_code for host in OWN],
        ]

    statuses = in_process(fake(engine(lambda _: "x"), key="s3cret"), send)
    assert statuses == [401, 401, 200, 401, *[403] * 6, *[200] * 6, *[401] * 5]


FOREIGN = ["evil.example", "localhost.evil.example:80", "[::1", "[]", "10.0.0.1:8000", ""]
OWN = ["localhost:8000", "LOCALHOST", "127.0.0.1:", "127.0.0.5:8000", "[::1]:8000"]


def test_a_temperature_next_to_nothing_is_greedy_and_harms_nobody():
    import torch

    from engine_models import tiny
    from renshu.engines.native import NativeEngine

    model = tiny(vocab_size=300)
    bodies = [{"temperature": value, "max_tokens": 8, "logprobs": True} for value in (0, 1e-45, 1e-300)]

    async def send(client):
        sent = (client.post("/v1/chat/completions", json={**HELLO, **body}) for body in bodies)
        return await asyncio.gather(*sent)

    with torch.no_grad():
        responses = in_process(fake(NativeEngine(model)), send)
    assert [response.status_code for response in responses] == [200, 200, 200]
    tokens = [
        [token["token"] for token in response.json()["choices"][0]["logprobs"]["content"]]
        for response in responses
    ]
    assert len(tokens[0]) == 8
    assert tokens == [tokens[0]] * 3


def test_the_servers_own_limit_fits_the_context():
    short = len(CHAT.prompt([Message("user", "hello")])) + 4
    (choice,) = ask(fake(engine(["a long answer"], context=short))).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a lo", "length")
