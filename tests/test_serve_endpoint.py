"""The endpoint with a scripted engine: what it answers, what it refuses, and that it loses nothing."""

import asyncio
import json
from contextlib import suppress

import httpx2
import pytest

from renshu.engines.scripted import ScriptedEngine
from rollout_kit import CHAT, call_text, engine, ids_of, text_of
from serve_kit import CALLED, HELLO, WEATHER, Steps, ask, events, fake, in_process, listening

CALL = call_text("weather", '{"city": "Oslo"}')


def test_a_whole_answer_has_openais_form():
    response = ask(fake(engine(["Good day."])))
    assert response.status_code == 200
    body = response.json()
    (choice,) = body["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": "Good day."},
        "finish_reason": "stop",
        "logprobs": None,
    }
    assert (body["object"], body["model"]) == ("chat.completion", "fake")
    assert body["id"].startswith("chatcmpl-")
    prompt = len(CHAT.prompt([*_messages()]))
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": 10, "total_tokens": prompt + 10}


def _messages():
    from renshu.types import Message

    return [Message("user", "hello")]


def test_calls_have_ids_and_arguments_as_text():
    response = ask(fake(engine([f"I look.\n{CALL}\n{CALL}"])), tools=[WEATHER])
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    first, second = choice["message"]["tool_calls"]
    assert (first["type"], first["function"], second["function"]) == ("function", CALLED, CALLED)
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]
    single = ask(fake(engine([f"{CALL}\n{CALL}"])), tools=[WEATHER], parallel_tool_calls=False)
    assert len(single.json()["choices"][0]["message"]["tool_calls"]) == 1


def test_without_tools_or_with_none_nothing_is_called():
    for body in ({}, {"tools": [WEATHER], "tool_choice": "none"}):
        seen = []

        def say(text, seen=seen):
            seen.append(text)
            return f"Look: {CALL}"

        (choice,) = ask(fake(engine(say)), **body).json()["choices"]
        assert choice["message"] == {"role": "assistant", "content": "Look:"}
        assert choice["finish_reason"] == "stop"
        assert "weather" not in seen[0]


def test_the_prompt_is_the_one_of_training():
    seen = []

    def say(text):
        seen.append(text)
        return "12 degrees."

    dialogue = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a", "type": "function", "function": CALLED},
                {
                    "id": "b",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bergen"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "b", "content": "9"},
        {"role": "tool", "tool_call_id": "a", "content": "12"},
    ]
    assert ask(fake(engine(say)), messages=dialogue, tools=[WEATHER]).status_code == 200
    from renshu.types import Message, ToolCall

    calls = (ToolCall("weather", {"city": "Oslo"}), ToolCall("weather", {"city": "Bergen"}))
    expected = CHAT.prompt(
        [
            Message("system", "Be brief."),
            Message("user", "Weather in Oslo?"),
            Message("assistant", tool_calls=calls),
            Message("tool", "12", name="weather"),
            Message("tool", "9", name="weather"),
        ],
        [WEATHER],
    )
    assert seen == [text_of(expected)]


def test_a_conversation_goes_on_from_the_sampled_tokens():
    """Odd spacing in a call, and a thought that the client never sends back, stay as they were sampled."""
    odd = '<think>\nOslo\n</think>\n\n<tool_call>{"name":"weather",  "arguments":{"city":"Oslo"}}</tool_call>'
    seen = []

    def say(text):
        seen.append(text)
        return odd if len(seen) == 1 else "Done."

    async def talk(client):
        messages = [{"role": "user", "content": "hello"}]
        for _ in range(2):
            body = {"model": "fake", "messages": messages, "tools": [WEATHER]}
            message = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]["message"]
            message.pop("reasoning_content", None)
            messages.append(message)
            for call in message.get("tool_calls", []):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "12"})
        return messages

    messages = in_process(fake(engine(say)), talk)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert seen[1].startswith(seen[0] + odd + "<|im_end|>\n<|im_start|>user\n<tool_response>\n12")


def test_a_stream_says_the_same_and_shows_no_half_call():
    said = f"<think>\nhm\n</think>\n\nGrüße 天気 — a < b.\n{CALL}"
    whole = ask(fake(engine([said])), tools=[WEATHER]).json()
    chunks = events(
        ask(
            fake(engine([said])),
            tools=[WEATHER],
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    *parts, last = chunks
    deltas = [chunk["choices"][0]["delta"] for chunk in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    contents = [delta["content"] for delta in deltas[1:] if "content" in delta]
    assert "".join(contents) == whole["choices"][0]["message"]["content"] == "Grüße 天気 — a < b."
    assert len(contents) > 10
    assert [d["reasoning_content"] for d in deltas if "reasoning_content" in d] == ["hm"]
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [(call["index"], call["function"]) for call in calls] == [(0, CALLED)]
    assert [chunk["choices"][0]["finish_reason"] for chunk in parts][-2:] == [None, "tool_calls"]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("tokens", range(1, 60))
def test_a_torn_call_never_shows(tokens):
    """Cut after any number of tokens: stream and body agree, and hold no piece of the call."""
    said = f"Hm.{CALL}"
    whole = ask(fake(engine([said])), tools=[WEATHER], max_tokens=tokens).json()["choices"][0]
    chunks = events(ask(fake(engine([said])), tools=[WEATHER], max_tokens=tokens, stream=True))
    streamed = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    length = len(ids_of(said))
    assert whole["message"]["content"] == streamed == "Hm."[:tokens]
    finish = "length" if tokens < length else "tool_calls"
    assert whole["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == finish
    assert ("tool_calls" in whole["message"]) == (tokens >= length)


def test_stop_texts_end_the_answer_and_are_no_part_of_it():
    steps = Steps(lambda _: "one, two, three")
    whole = ask(fake(steps), stop=["zzz", ", th"]).json()
    assert whole["choices"][0]["message"]["content"] == "one, two"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert len(steps.served) == len("one, two, th")  # nothing is sampled behind it
    chunks = events(ask(fake(Steps(lambda _: "one, two, three")), stop=", th", stream=True))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "one, two"


def test_several_choices_and_logprobs():
    body = ask(fake(Steps(lambda _: "ab")), n=3, logprobs=True).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == 9
    tokens = body["choices"][2]["logprobs"]["content"]
    assert [token["token"] for token in tokens] == ["a", "b", "<|im_end|>"]
    assert tokens[0] == {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    chunks = events(ask(fake(Steps(lambda _: "ab")), n=2, stream=True))
    said = {0: "", 1: ""}
    for chunk in chunks:
        (choice,) = chunk["choices"]
        said[choice["index"]] += choice["delta"].get("content", "")
    assert said == {0: "ab", 1: "ab"}


def test_models_health_and_unknown_places():
    async def look(client):
        paths = ("/v1/models", "/v1/models/fake", "/v1/models/gpt-4", "/health", "/v1/nonsense")
        return [await client.get(path) for path in paths] + [await client.get("/v1/chat/completions")]

    listed, one, other, health, nowhere, get = in_process(fake(engine([])), look)
    assert listed.json()["data"] == [one.json()]
    assert one.json() == {"id": "fake", "object": "model", "created": 0, "owned_by": "renshu"}
    assert health.json() == {"status": "ok"}
    assert [r.status_code for r in (other, nowhere, get)] == [404, 404, 405]
    assert all("message" in r.json()["error"] for r in (other, nowhere, get))


def test_two_hundred_at_once_and_none_lost():
    steps = Steps(lambda prompt: prompt.split("user\n")[-1].split("<|im_end|>")[0][::-1])

    async def send(client):
        bodies = [{**HELLO, "messages": [{"role": "user", "content": f"n{n}"}]} for n in range(200)]
        return await asyncio.gather(*(client.post("/v1/chat/completions", json=body) for body in bodies))

    responses = in_process(fake(steps, at_once=64), send)
    said = [response.json()["choices"][0]["message"]["content"] for response in responses]
    assert said == [f"n{n}"[::-1] for n in range(200)]
    assert 1 < max(steps.served) <= 64  # together, never more than `at_once`
    assert len(steps.served) < 60  # decoded together; one after another takes 200 × 3 to 5 steps


def test_who_comes_later_joins_at_the_next_step():
    steps = Steps(lambda prompt: "long" * 10 if "first" in prompt else "no", pause=0.005)

    async def send(client):
        async def post(text, wait):
            await asyncio.sleep(wait)
            body = {**HELLO, "messages": [{"role": "user", "content": text}]}
            await client.post("/v1/chat/completions", json=body)
            return len(steps.served)

        return await asyncio.gather(post("first", 0), post("second", 0.05))

    first, second = in_process(fake(steps), send)
    assert first == 41  # as many steps as the long answer alone takes
    assert second < 41
    assert steps.served.count(2) == 3


def hang_up(url, stream):
    """Ask for a long answer, and leave after 0.3 seconds, or at the first chunk of a stream."""
    sent = httpx2.stream("POST", url, json={**HELLO, "stream": stream}, timeout=0.3)
    with suppress(httpx2.TimeoutException), sent as response:
        next(response.iter_lines())


def test_a_client_that_leaves_frees_its_place():
    steps = Steps(lambda _: "word " * 400, pause=0.002)
    service = fake(steps, at_once=1)
    with listening(service) as (address, _):
        for stream in (False, True):
            before = len(steps.served)
            hang_up(f"{address}/v1/chat/completions", stream)
            short = {**HELLO, "max_tokens": 1}
            assert httpx2.post(f"{address}/v1/chat/completions", json=short, timeout=30).status_code == 200
            assert len(steps.served) - before < 600  # of 2,001


def test_an_engine_that_fails_is_told_and_the_server_goes_on():
    def say(ids):
        if "fail" in text_of(ids):
            raise ValueError("the machine is on fire")
        return ids_of("fine")

    async def send(client):
        bad = {**HELLO, "messages": [{"role": "user", "content": "fail"}]}
        url = "/v1/chat/completions"
        return [await client.post(url, json=body) for body in (bad, HELLO, {**bad, "stream": True}, HELLO)]

    first, second, third, fourth = in_process(fake(ScriptedEngine(say)), send)
    assert (first.status_code, second.status_code, fourth.status_code) == (500, 200, 200)
    assert first.json()["error"]["type"] == "server_error"
    assert "the machine is on fire" in first.json()["error"]["message"]
    assert "the machine is on fire" in third.text


KEYS = ["time", "id", "model", "messages", "tools", "temperature", "finish", "seconds", "usage"]


def test_requests_are_kept_as_a_sample(tmp_path):
    log = tmp_path / "requests.jsonl"
    response = ask(fake(engine([CALL]), log=log), tools=[WEATHER], temperature=0.5)
    (line,) = log.read_text("utf-8").splitlines()
    record = json.loads(line)
    assert record["messages"] == [HELLO["messages"][0], response.json()["choices"][0]["message"]]
    assert (record["tools"], record["usage"]) == ([WEATHER], response.json()["usage"])
    assert (record["id"], record["finish"], record["temperature"]) == (
        response.json()["id"],
        "tool_calls",
        0.5,
    )
    assert oct(log.stat().st_mode)[-3:] == "600"
    assert list(record) == KEYS

    from renshu.data.dialogues import read_dialogues

    assert len(read_dialogues(log).items) == 1  # a supervised stage takes it as it is


def test_the_log_is_bounded(tmp_path):
    from renshu.serve.log import RequestLog

    service = fake(engine(lambda _: "x"))
    log = RequestLog(tmp_path / "requests.jsonl", limit=1000)
    object.__setattr__(service, "log", log)

    async def send(client):
        for number in range(12):
            size = 2000 if number == 5 else 10
            body = {**HELLO, "messages": [{"role": "user", "content": f"{number}" * size}]}
            await client.post("/v1/chat/completions", json=body)

    in_process(service, send)
    sizes = [path.stat().st_size for path in (log.path, log.older)]
    assert all(0 < size <= 1000 for size in sizes)
    assert log.left_out == 1
    for path in (log.path, log.older):
        assert all(json.loads(line) for line in path.read_text("utf-8").splitlines())
