"""An agent of its own, written with the official `openai` client, trained through the proxy:
`python bench/proxy_agent.py`. It books flights: the desk behind its tools is Renshu's `flights`, but the loop
and the reward are this program's, as any program has them.

First the embedded model is warmed up by demonstrations, so that it can call tools at all. Then `renshu proxy`
is started, 400 test tasks are played, the agent practises, and the same 400 tasks are played again. Prints
both rates and the paired McNemar test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import DefaultHttpxClient, OpenAI

from renshu.envs.flights import FlightDesk
from renshu.evaluation.statistics import mcnemar, wilson
from renshu.pipeline.recipe import read_recipe
from renshu.pipeline.train import train_recipe
from renshu.proxy.client import Episode, Played, Proxy, ProxyError, Reward
from renshu.seeding import generator
from renshu.types import Message, Stop, Task, Trajectory, Unscored

HERE = Path(__file__).parent
TURNS = 6
CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none", http_client=DefaultHttpxClient(trust_env=False))


class Agent:
    """One customer at the desk: a while-loop with tools, as people write it."""

    def __init__(self, episode: Episode) -> None:
        self.client = CLIENT.with_options(base_url=episode.base_url)
        self.task: Task = episode.task
        self.desk = FlightDesk()
        self.tools = {spec.name: spec for spec in self.desk.tools()}
        self.counts = dict.fromkeys(("calls", "bad_calls", "tool_errors", "timeouts"), 0)

    def play(self) -> Reward:
        messages: list[Any] = [
            {"role": message.role, "content": message.content} for message in self.desk.opening(self.task)
        ]
        schemas: Any = [spec.schema for spec in self.tools.values()]
        answered = False
        while not answered and len(messages) < 2 * TURNS:
            answer = self.client.chat.completions.create(model="agent", messages=messages, tools=schemas)
            said, finish = answer.choices[0].message, answer.choices[0].finish_reason
            messages.append(said.model_dump(exclude_none=True))
            if finish == "length":
                break
            for call in said.tool_calls or ():
                assert call.type == "function"
                text = self.call(call.function.name, call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
            answered = not said.tool_calls
        return self.reward(messages[-1].get("content") or "", answered=answered)

    def call(self, name: str, arguments: str) -> str:
        self.counts["calls"] += 1
        if name not in self.tools:
            self.counts["bad_calls"] += 1
            return f"error: there is no tool {name}"
        result = asyncio.run(self.tools[name].call(json.loads(arguments)))
        self.counts["tool_errors"] += not result.ok
        return result.text

    def reward(self, said: str, *, answered: bool) -> Reward:
        """1 for the cheapest flight that fits, 0.2 for a dearer one, and 0.1 for good manners."""
        stop = Stop.ANSWERED if answered else Stop.TURNS
        ended = Trajectory(self.task, (), (Message("assistant", said),), stop, Unscored(""), (), self.counts)
        value = self.desk.choice(ended) + 0.1 * self.desk.well_formed(ended)
        return Reward(value, self.desk.solved(ended))


def play(episode: Episode) -> Reward:
    return Agent(episode).play()


def warmed_up(folder: Path) -> Path:
    """The model after the first stage of `flights`: a model folder."""
    run = folder / "warm-up"
    if not (run / "summary.json").is_file():
        settings = ["eval.tasks=50", "eval.dev_tasks=50", "eval.compare=[]", f"out={run}"]
        recipe = read_recipe("flights", settings)
        train_recipe(recipe.model_copy(update={"stages": recipe.stages[:1]}), name="warm-up", overwrite=True)
    return run / "checkpoints" / "final"


def started(folder: Path, model: Path, port: int, overrides: Sequence[str]) -> subprocess.Popen[bytes]:
    """`renshu proxy`, once it listens."""
    settings = [f"model.name={model}", f"out={folder / 'practice'}", *overrides]
    command = ["renshu", "proxy", str(HERE / "proxy_flights.yaml"), *settings]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    server = subprocess.Popen([*command, "--port", str(port), "--overwrite"], env=environment)
    while server.poll() is None:
        try:
            Proxy(f"http://127.0.0.1:{port}").status()
            return server
        except ProxyError:
            time.sleep(0.5)
    raise SystemExit(f"renshu proxy ended with code {server.returncode}")


def rate(played: Sequence[Played]) -> str:
    known = [bool(one.reward.success) for one in played]
    interval = wilson(sum(known), len(known))
    return f"{interval.estimate:.1%} of {len(known)} ({interval.low:.1%} to {interval.high:.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/proxy-agent"))
    parser.add_argument("--port", type=int, default=8700)
    parser.add_argument("--tasks", type=int, default=400, help="of test")
    parser.add_argument(
        "overrides", nargs="*", help="of bench/proxy_flights.yaml, e.g. stages.0.grpo.steps=20"
    )
    given = parser.parse_args()
    began = time.perf_counter()
    model = warmed_up(given.out)
    server = started(given.out, model, given.port, given.overrides)
    assert FlightDesk.tasks is not None
    train, dev, test = (FlightDesk.tasks.split(split) for split in ("train", "dev", "test"))
    proxy = Proxy(f"http://127.0.0.1:{given.port}", at_once=32)
    order = list(range(len(train)))
    generator("agent").shuffle(order)

    def practise(tasks: Sequence[Task], split: Any = "train") -> list[Played]:
        return proxy.run(tasks, play, split=split, name=lambda task: task.id)

    before = practise(test[: given.tasks], "test")
    print(f"before: {rate(before)}", flush=True)
    for step in proxy.steps():
        per_step = proxy.status()["stage"]["tasks_per_step"]
        chosen = [train[index] for index in order[step * per_step :][:per_step]]
        played = practise(chosen)
        print(f"step {step + 1}: success {rate(played)}", flush=True)
        if step % 10 == 9:
            print(f"dev: {rate(practise(dev[:64], 'dev'))}", flush=True)
    after = practise(test[: given.tasks], "test")
    paired = mcnemar([one.reward.success for one in before], [one.reward.success for one in after])
    summary = proxy.finish()["summary"]
    server.wait()
    print(f"before: {rate(before)}\nafter:  {rate(after)}")
    found = f"{paired.gained} tasks gained, {paired.lost} lost"
    print(f"McNemar, paired by task: {found}, p = {paired.p:.2g}")
    minutes, inside = (time.perf_counter() - began) / 60, summary["seconds"] / 60
    print(f"{minutes:.1f} minutes, {inside:.1f} of them in the proxy")


if __name__ == "__main__":
    main()
