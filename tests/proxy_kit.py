"""A proxy in a thread, with a tiny model; and agents of a few lines that speak to it as any program would."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from openai import OpenAI

from renshu.pipeline.recipe import Recipe
from renshu.pipeline.watch import Watcher
from renshu.proxy.client import Episode, Proxy, ProxyError, Reward
from renshu.proxy.start import run_proxy
from tiny_models import qwen_template, save_tiny_model

GRPO = {"steps": 3, "tasks_per_step": 2, "group": 4, "learning_rate": 0.02}


def proxy_recipe(folder: Path, **changes: Any) -> Recipe:
    """A recipe of one stage, with a tiny random model that is written into `folder`."""
    model = folder / "model"
    if not model.is_dir():
        save_tiny_model(model, template=qwen_template())
    grpo = GRPO | changes.pop("grpo", {})
    stage = {"name": "practice", "grpo": grpo, "sample": {"max_tokens": 8}}
    data = {"seed": 3, "model": {"name": str(model)}, "stages": [stage], "out": str(folder / "run")}
    return Recipe.from_dict({**data, "eval": {"max_tokens": 4}, **changes})


class Noting(Watcher):
    """Where the proxy listens, as soon as it does."""

    def __init__(self) -> None:
        self.address = ""
        self.ready = threading.Event()

    def noted(self, text: str) -> None:
        if "/episodes" in text:
            self.address = text.split()[-1].removesuffix("/episodes")
            self.ready.set()


@contextmanager
def proxied(recipe: Recipe, **options: Any) -> Iterator[Proxy]:
    """A proxy of a recipe; at the end of the block it must have ended."""
    watcher = Noting()
    failed: list[BaseException] = []

    def play() -> None:
        try:
            run_proxy(recipe, name="tiny", port=0, watcher=watcher, **options)
        except BaseException as error:
            failed.append(error)
        finally:
            watcher.ready.set()

    thread = threading.Thread(target=play)
    thread.start()
    watcher.ready.wait(60)
    proxy = Proxy(watcher.address)
    try:
        if watcher.address:
            yield proxy
    finally:
        if thread.is_alive():
            with suppress(ProxyError):  # it has ended by itself
                proxy.finish()
        thread.join(60)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


def say(episode: Episode, *, text: str = "go", **options: Any) -> str:
    """What the model answers."""
    with OpenAI(base_url=episode.base_url, api_key="none", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": text}]
        answer = client.chat.completions.create(model="any", messages=messages, **options)
        return answer.choices[0].message.content or ""


def low(text: str) -> float:
    """A reward that a random model earns now and then: the share of letters in what it wrote."""
    return sum(letter.isascii() and letter.isalpha() for letter in text) / max(1, len(text))


def letters(episode: Episode) -> Reward:
    reward = low(say(episode))
    return Reward(reward, reward > 0.5)


class Printing(Watcher):
    """Says everything to whoever started this process."""

    def noted(self, text: str) -> None:
        print(text, flush=True)


if __name__ == "__main__":  # python proxy_kit.py FOLDER CHECKPOINTS_EVERY
    given, every = Path(sys.argv[1]), int(sys.argv[2])
    recipe = proxy_recipe(given, grpo={"steps": 4}, checkpoints={"every": every}, threads=1)
    run_proxy(recipe, name="tiny", port=0, watcher=Printing())
