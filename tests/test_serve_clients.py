"""The official client of OpenAI against a real server; served answers against those of `renshu chat`."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx2
import openai
import pytest

from renshu.engines import Sampling
from renshu.engines.driver import TokenSession
from renshu.envs import Interaction
from renshu.envs.flights import FlightDesk
from renshu.models import ModelSettings
from renshu.pipeline.agent import build_agent
from renshu.pipeline.talk import Bare, talk
from renshu.serve.run import service_of
from renshu.types import Task, ToolCall
from rollout_kit import call_text
from serve_kit import HELLO, WEATHER, Steps, fake, in_process, listening
from tiny_models import qwen_template, save_tiny_model

CALL = call_text("weather", '{"city": "Oslo"}')


def weather(prompt: str) -> str:
    """Asks for the weather, then tells it."""
    return "It is 12 degrees." if "<tool_response>\n12" in prompt else f"I look.\n{CALL}"


@pytest.fixture
def client():
    with listening(fake(Steps(weather), key="s3cret")) as (address, _):
        yield openai.OpenAI(base_url=f"{address}/v1", api_key="s3cret", max_retries=0)


def test_a_loop_with_tools(client):
    messages = [{"role": "user", "content": "How warm is it in Oslo?"}]
    while True:
        answer = client.chat.completions.create(model="fake", messages=messages, tools=[WEATHER])
        (choice,) = answer.choices
        messages.append(choice.message)
        if choice.finish_reason != "tool_calls":
            break
        for call in choice.message.tool_calls:
            assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo"})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "12"})
    assert (choice.message.content, choice.finish_reason) == ("It is 12 degrees.", "stop")
    assert len(messages) == 4
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + len("It is 12 degrees.") + 1


def test_a_stream_with_tools(client):
    content, calls, finish = "", {}, None
    with client.chat.completions.create(
        **HELLO, tools=[WEATHER], stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            if not chunk.choices:
                used = chunk.usage.completion_tokens
                continue
            delta = chunk.choices[0].delta
            content += delta.content or ""
            for call in delta.tool_calls or []:
                calls[call.index] = (call.id, call.function.name, call.function.arguments)
            finish = chunk.choices[0].finish_reason or finish
    assert (content, finish) == ("I look.", "tool_calls")
    assert [call[1:] for call in calls.values()] == [("weather", '{"city": "Oslo"}')]
    assert calls[0][0].startswith("call_")
    assert used > len(content)


def test_the_clients_own_stream_helper(client):
    with client.chat.completions.stream(**HELLO, tools=[WEATHER]) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls
    assert (final.choices[0].message.content, call.function.arguments) == ("I look.", '{"city": "Oslo"}')


def test_errors_are_the_clients_own(client):
    assert [model.id for model in client.models.list()] == ["fake"]
    with pytest.raises(openai.NotFoundError, match="this server has 'fake'"):
        client.chat.completions.create(model="gpt-4", messages=HELLO["messages"])
    with pytest.raises(openai.BadRequestError, match="messages: expected a list") as refused:
        client.chat.completions.create(model="fake", messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_two_hundred_at_once_over_the_network():
    steps = Steps(lambda prompt: prompt.split("user\n")[-1].split("<|im_end|>")[0])

    async def send(address):
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:

            async def one(number):
                asked = [{"role": "user", "content": f"n{number}"}]
                if number % 2:
                    answer = await client.chat.completions.create(model="fake", messages=asked)
                    return answer.choices[0].message.content
                stream = await client.chat.completions.create(model="fake", messages=asked, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(200)))

    with listening(fake(steps)) as (address, _):
        assert asyncio.run(send(address)) == [f"n{number}" for number in range(200)]


def test_shutdown_finishes_what_is_running():
    steps = Steps(lambda _: "word " * 40, pause=0.002)
    said = []
    with listening(fake(steps)) as (address, serving):
        url = f"{address}/v1/chat/completions"
        ask = threading.Thread(target=lambda: said.append(httpx2.post(url, json=HELLO, timeout=30).json()))
        ask.start()
        while len(steps.served) < 5:
            time.sleep(0.002)
        assert not said
        serving.should_exit = True
    ask.join()
    assert said[0]["choices"][0]["message"]["content"] == ("word " * 40).strip()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), template=qwen_template(), width=32, layers=2)


class Played:
    """The ids of every turn that any session samples."""

    def __init__(self, monkeypatch) -> None:
        self.turns: list[tuple[int, ...]] = []
        generate = TokenSession.generate

        async def watched(session, sampling, watch=None):
            generated = await generate(session, sampling, watch)
            self.turns.append(generated.segment.ids)
            return generated

        monkeypatch.setattr(TokenSession, "generate", watched)

    def take(self) -> list[tuple[int, ...]]:
        turns, self.turns = self.turns, []
        return turns


async def served_episode(client: httpx2.AsyncClient, task: Task, tokens: int) -> None:
    """A client's loop: the tools are those of the environment, the model is behind the endpoint."""
    desk = Interaction(FlightDesk(), task)
    messages = [{"role": message.role, "content": message.content} for message in desk.messages]
    while True:
        body = {"model": "it", "messages": messages, "tools": desk.schemas, "max_tokens": tokens}
        response = await client.post("/v1/chat/completions", json=body)
        message = response.json()["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls", []):
            function = call["function"]
            result = await desk._run(ToolCall(function["name"], json.loads(function["arguments"])))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result.text})
        if messages[-1] is message or len(messages) > 12:
            return


@pytest.mark.parametrize("name", ["tiny", "embedded"])
def test_greedy_answers_are_those_of_chat(name, tiny, monkeypatch):
    """Token for token, over whole episodes with tools, one request at a time, prefixes kept in between."""
    agent = build_agent(ModelSettings(name=str(tiny) if name == "tiny" else name, device="cpu"))
    played = Played(monkeypatch)
    tokens, tasks = (24, 3) if name == "tiny" else (48, 2)
    sampling = Sampling(tokens, temperature=0.0, stop_ids=agent.chat.stop_ids)
    chatted, served = [], []
    for number in range(tasks):
        task = FlightDesk.tasks.test[number]
        said = iter([""])  # the task's own request
        talk(agent, FlightDesk, task, sampling, lambda said=said: next(said, None), lambda _: None)
        chatted.append(played.take())
    bare = ["hello", "你好"]
    for text in bare:
        said = iter([text])
        talk(agent, Bare, Task("chat/0"), sampling, lambda said=said: next(said, None), lambda _: None)
        chatted.append(played.take())

    async def serve(client):
        for number in range(tasks):
            await served_episode(client, FlightDesk.tasks.test[number], tokens)
            served.append(played.take())
        for text in bare:
            body = {"model": "it", "messages": [{"role": "user", "content": text}], "max_tokens": tokens}
            await client.post("/v1/chat/completions", json=body)
            served.append(played.take())

    in_process(service_of(agent.chat, agent.engine, "it"), serve)
    assert all(served)
    for of_chat, of_server in zip(chatted, served, strict=True):
        assert of_server == of_chat[: len(of_server)]  # chat also answers calls that nobody can read


def test_the_official_client_and_the_embedded_model():
    """A loop with tools ends, whatever the model makes of it."""
    agent = build_agent(ModelSettings(device="cpu"))
    task = FlightDesk.tasks.test[0]
    desk = Interaction(FlightDesk(), task)
    messages = [{"role": message.role, "content": message.content} for message in desk.messages]
    with listening(service_of(agent.chat, agent.engine, "embedded")) as (address, _):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
        for _ in range(3):
            message = (
                client.chat.completions.create(
                    model="embedded", messages=messages, tools=desk.schemas, max_tokens=96
                )
                .choices[0]
                .message
            )
            messages.append(message)
            calls = message.tool_calls or []
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "[]"} for call in calls]
            if not calls:
                break
        messages.append({"role": "user", "content": "Thanks."}) if not calls else None
        stream = client.chat.completions.create(
            model="embedded", messages=messages, tools=desk.schemas, max_tokens=8, stream=True
        )
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("stop", "length", "tool_calls")


def test_the_command_serves_and_ends_when_told(tiny, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).parent / "renshu", "serve", tiny, "--port", str(port)]
    log = tmp_path / "kept.jsonl"
    process = subprocess.Popen([*command, "--log", log], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        while process.poll() is None:
            try:
                models = httpx2.get(f"http://127.0.0.1:{port}/v1/models").json()
                break
            except httpx2.ConnectError:
                time.sleep(0.1)
        name = models["data"][0]["id"]
        body = {**HELLO, "model": name, "max_tokens": 200, "stream": True}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        with httpx2.stream("POST", url, json=body, timeout=60) as response:
            lines = response.iter_lines()
            first = next(lines)
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
    assert name == tiny.name
    assert first.startswith("data: {")
    assert rest[-1] == "data: [DONE]"
    assert len(log.read_text("utf-8").splitlines()) == 1
    told = process.stderr.read()
    assert f"serving {tiny.name} at http://127.0.0.1:{port}/v1" in told
    assert "Traceback" not in told


def test_the_command_refuses_what_is_unsafe(monkeypatch, capsys, tiny):
    from renshu.cli import main

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["renshu", "serve", str(tiny), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 1
        return capsys.readouterr().err

    assert "add --expose" in run("--host", "0.0.0.0")
    assert "exclude each other" in run("--log", "x", "--no-log")
    monkeypatch.setenv("EMPTY_KEY", "")
    assert "EMPTY_KEY is not set" in run("--api-key-env", "EMPTY_KEY")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert f"port {port} of 127.0.0.1 cannot be used" in run("--port", port, "--no-log")
