"""A proxy on a scripted engine, whose main thread is the test, and a client of it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from renshu.algorithms import PracticeConfig
from renshu.engines import Sampling
from renshu.proxy.app import Proxy, application
from renshu.proxy.episode import Episode, Rules
from renshu.proxy.register import Register
from renshu.rollout import Limits
from renshu.serve.worker import Worker
from rollout_kit import CHAT
from serve_kit import Steps

HELLO = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hello"}]}
CHECK = list  # never asks for the end


class House:
    """A proxy whose main thread is the test."""

    def __init__(
        self, engine: Steps, *, patience: float = 60.0, limits: Limits | None = None, **sampling: Any
    ):
        self.evaluated: list[Episode] = []
        sample = {"max_tokens": 200, "temperature": 0.7, **sampling}
        self.rules = Rules(Sampling(**sample, stop_ids=CHAT.stop_ids), limits or Limits())
        greedy = Rules(Sampling(100, temperature=0.0, stop_ids=CHAT.stop_ids))
        self.register = Register(
            CHAT, engine, greedy, seed=1, patience=patience, evaluated=self.evaluated.append
        )
        self.worker = Worker(engine)
        self.begin_stage()

    def begin_stage(self, step: int = 0, **config: Any) -> None:
        settings = PracticeConfig(
            **{"steps": 9, "tasks_per_step": 2, "group": 2, "learning_rate": 1e-3, **config}
        )
        self.register.begin_stage("practice", settings, self.rules, step)

    def play(self, work: Any) -> Any:
        async def go() -> Any:
            app = application(Proxy("tiny", self.register, self.worker))
            transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
            async with (
                app.router.lifespan_context(app),
                httpx2.AsyncClient(
                    transport=transport, base_url="http://127.0.0.1:8700", timeout=60
                ) as client,
            ):
                return await work(Client(client))

        return asyncio.run(go())

    async def gathered(self) -> list[Any]:
        return await asyncio.to_thread(self.register.gather, CHECK)


class Client:
    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def post(self, path: str, body: Any = None) -> httpx2.Response:
        return await self.http.post(path, json={} if body is None else body)

    async def begin(self, task: str = "t", split: str = "train") -> str:
        answer = await self.post("/episodes", {"task": task, "split": split})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    async def ask(self, episode: str, **body: Any) -> httpx2.Response:
        return await self.post(f"/episodes/{episode}/v1/chat/completions", {**HELLO, **body})

    async def reward(self, episode: str, reward: float | None, **body: Any) -> httpx2.Response:
        return await self.post(f"/episodes/{episode}/reward", {"reward": reward, **body})

    async def whole(self, task: str, reward: float | None, split: str = "train", **body: Any) -> None:
        episode = await self.begin(task, split)
        await self.ask(episode)
        assert (await self.reward(episode, reward, **body)).status_code == 200


def error(answer: httpx2.Response) -> str:
    return answer.json()["error"]["message"]
