"""What the proxy does not understand is refused, and not recorded."""

from __future__ import annotations

import json

import pytest

from proxy_house import HELLO, House, error
from renshu.serve.http import BODY
from serve_kit import Steps


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/episodes", {}, 400, "task"),
        ("/episodes", {"task": ""}, 400, "task"),
        ("/episodes", {"task": 7}, 400, "task"),
        ("/episodes", {"task": "t", "split": "training"}, 400, "split"),
        ("/episodes", {"task": "t", "name": "x"}, 400, "name"),
        ("/episodes", b"{", 400, "not JSON"),
        ("/episodes", b'{"task": "' + b"a" * BODY + b'"}', 413, "larger than 8 MiB"),
        ("/episodes/nobody/reward", {"reward": 1.0}, 404, "there is no episode 'nobody'"),
        ("/episodes/nobody/v1/chat/completions", HELLO, 404, "there is no episode"),
        ("/v1/chat/completions", HELLO, 404, "begin one with POST /episodes"),
        ("/train", {"update": 0}, 400, "update"),
        ("/finish", {"now": True}, 400, "now"),
    ],
)
def test_what_is_not_understood_is_refused(path, body, status, text):
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await client.http.post(path, content=data, headers={"content-type": "application/json"})

    answer = house.play(work)
    assert answer.status_code == status
    assert text in error(answer)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"n": 2}, "n: one answer a request"),
        ({"top_logprobs": 3}, "top_logprobs is not supported"),
        ({"response_format": {"type": "json_object"}}, "only text"),
        ({"frequency_penalty": 0.5}, "frequency_penalty is not supported"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "the model's context has 1000 tokens"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_requests_are_refused_as_in_serving_and_not_recorded(body, text):
    house = House(Steps(lambda prompt: "ok", context=1000))

    async def work(client):
        episode = await client.begin()
        refused = await client.ask(episode, **body)
        unscored = await client.reward(episode, 1.0)
        return refused, unscored.json()

    refused, unscored = house.play(work)
    assert refused.status_code == 400
    assert text in error(refused)
    assert unscored["scored"] is False
    assert unscored["reason"].startswith("no_tokens: ")


@pytest.mark.parametrize(
    ("body", "split", "status", "text"),
    [
        (b'{"reward": NaN}', "train", 400, "not JSON"),
        (b'{"reward": 1e999}', "train", 400, "not a finite number"),
        (b'{"reward": "1"}', "train", 400, "reward"),
        (b'{"reward": true}', "train", 400, "reward"),
        (b'{"reward": 1, "success": 1}', "train", 400, "success"),
        (b'{"reward": 1}', "test", 400, "say true or false"),
        (b'{"success": true}', "test", 200, ""),
        (b'{"reward": null}', "dev", 200, ""),
    ],
)
def test_rewards_are_read_strictly(body, split, status, text):
    house = House(Steps(lambda prompt: "ok"))

    async def work(client):
        episode = await client.begin("t", split)
        await client.ask(episode)
        return await client.http.post(
            f"/episodes/{episode}/reward", content=body, headers={"content-type": "application/json"}
        )

    answer = house.play(work)
    assert answer.status_code == status
    assert not text or text in error(answer)
