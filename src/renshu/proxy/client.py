"""A client of the proxy for agents written in Python; it needs nothing but the standard library.

from renshu.proxy.client import Proxy

def play(episode):
    client = OpenAI(base_url=episode.base_url, api_key="none")
    ...
    return reward

proxy = Proxy("http://127.0.0.1:8700")
for step in proxy.steps():
    proxy.run(draw_tasks(8), play)
proxy.finish()
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

PATIENCE = 600.0  # seconds that a request may take, an update in between included
WAIT = 30.0  # seconds of one question for the status


class ProxyError(Exception):
    """The proxy refused something, or is not there. status: of HTTP, None without an answer."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Reward:
    """What an episode was worth. value: None is unknown. success: what is reported; None: not defined."""

    value: float | None
    success: bool | None = None


@dataclass(frozen=True)
class Episode:
    """One try at a task. task: as it was given to `run`. base_url: for this try's OpenAI clients."""

    id: str
    task: Any
    base_url: str


@dataclass(frozen=True)
class Played:
    """How an episode ended. reward: what was posted. error: what the agent raised; its reward is unknown."""

    task: Any
    reward: Reward
    error: Exception | None = None


Play = Callable[[Episode], "Reward | float | bool | None"]


class Proxy:
    """A running `renshu proxy`."""

    def __init__(self, address: str = "http://127.0.0.1:8700", *, at_once: int = 16) -> None:
        """at_once: episodes that `run` plays together, each in a thread."""
        self.address, self.at_once = address.rstrip("/"), at_once

    def status(self, *, after: int | None = None) -> dict[str, Any]:
        """Where the run stands. after: wait a while for an update beyond that one."""
        query = "" if after is None else f"?after={after}&wait={WAIT}"
        return self._call("GET", f"/status{query}")

    def steps(self) -> Iterator[int]:
        """The steps that are left, by number; what was played in the loop's body is trained on at its end.

        Raises ProxyError if nothing was played in it.
        """
        status = self._standing()
        while status["stage"] is not None:
            made = status["updates"]
            yield made
            self._call("POST", "/train", {"update": made + 1})
            while status["updates"] == made and status["stage"] is not None:
                status = self._standing(after=made)

    def run(
        self,
        tasks: Iterable[Any],
        play: Play,
        *,
        split: Literal["train", "dev", "test"] = "train",
        group: int | None = None,
        name: Callable[[Any], str] = str,
    ) -> list[Played]:
        """Play every task, `group` times, in threads; rewards are posted. Results in the tasks' order.

        play: an agent; it returns the reward, a Reward, True or False for a success worth 1 or 0, or None.
        group: default is the recipe's, and one of dev and test. name: the id of a task. An agent that raises
        leaves its episode unscored; if all do, ProxyError is raised from the first.
        """
        stage = self._standing()["stage"] if split == "train" else None
        times = group or (stage["group"] if stage is not None else 1)
        wanted = [task for task in tasks for _ in range(times)]
        with ThreadPoolExecutor(self.at_once) as pool:
            played = list(pool.map(lambda task: self._play(task, play, split, name), wanted))
        errors = [one.error for one in played if one.error is not None]
        if errors and len(errors) == len(played):
            raise ProxyError(f"every agent failed, the first with {errors[0]!r}") from errors[0]
        return played

    def begin(
        self, task: Any, split: Literal["train", "dev", "test"] = "train", *, name: Callable[[Any], str] = str
    ) -> Episode:
        """Begin an episode by hand."""
        begun = self._call("POST", "/episodes", {"task": name(task), "split": split})
        return Episode(begun["id"], task, begun["base_url"])

    def reward(self, episode: Episode, reward: Reward | float | bool | None) -> Reward:
        """End an episode that was begun by hand; returns what was posted."""
        given = _reward(reward)
        body = {"reward": given.value, "success": given.success}
        self._call("POST", f"/episodes/{episode.id}/reward", body)
        return given

    def finish(self) -> dict[str, Any]:
        """End the run; returns `{"run": its folder, "summary": …}`."""
        return self._call("POST", "/finish", {})

    def _play(self, task: Any, play: Play, split: Any, name: Callable[[Any], str]) -> Played:
        episode = self.begin(task, split, name=name)
        try:
            reward = _reward(play(episode))
        except Exception as error:
            return Played(task, self.reward(episode, None), error)
        return Played(task, self.reward(episode, reward))

    def _standing(self, after: int = -1) -> dict[str, Any]:
        """The status once a stage has begun, or all are over."""
        status = self.status(after=after)
        while status["phase"] in ("starting", "updating"):
            status = self.status(after=after)
        return status

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with _OPENER.open(request, timeout=PATIENCE) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            raise ProxyError(_told(error), error.code) from None
        except OSError as error:
            raise ProxyError(f"{self.address} does not answer: {error}; is renshu proxy running?") from None


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the address is this machine's


def _reward(given: Reward | float | bool | None) -> Reward:
    if isinstance(given, Reward):
        return given
    if isinstance(given, bool):
        return Reward(float(given), given)
    return Reward(None if given is None else float(given))


def _told(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
