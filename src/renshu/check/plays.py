"""Playing an environment without a model: the gold solution, and policies too cheap to deserve a reward."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from random import Random
from typing import Any, TypeVar

from renshu.envs.environment import Environment
from renshu.envs.interaction import play_through
from renshu.envs.moves import Call, Move, Moves, call, say
from renshu.envs.tasks import Split
from renshu.errors import RenshuError
from renshu.seeding import generator
from renshu.types import Message, Scored, Task, Trajectory

T = TypeVar("T")
Script = Callable[[Environment], Moves | Iterator[Move]]
RAMBLE = "I have thought about it step by step and everything is in order, as you asked. " * 20


class Hangs(Exception):
    """Something took longer than an episode may take."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of `work`, which runs in a thread of its own. Raises Hangs if it is not done in time."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # told to the caller
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True)  # a daemon does not hold up the exit
    thread.start()
    thread.join(seconds)
    if failure:
        raise failure[0]
    if not outcome:
        raise Hangs(f"not done after {seconds:g} seconds")
    return outcome[0]


@dataclass(frozen=True)
class Play:
    """One episode of a scripted policy. failure: why there is no trajectory. seconds: of wall clock."""

    policy: str
    split: Split
    task: Task
    trajectory: Trajectory | None
    failure: str
    seconds: float

    @property
    def score(self) -> Scored | None:
        """The known score, or None."""
        score = self.trajectory.score if self.trajectory is not None else None
        return score if isinstance(score, Scored) else None


@dataclass
class Stage:
    """Where episodes are played: each within `limit` seconds, all of them within `budget` seconds."""

    environment: type[Environment]
    budget: float = 60.0
    limit: float = 10.0
    plays: list[Play] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> float:
        """Share of the budget that is used up."""
        return (time.perf_counter() - self.began) / self.budget

    @property
    def exhausted(self) -> bool:
        return self.spent > 1

    def play(self, policy: str, split: Split, task: Task, script: Script) -> Play | None:
        """Play one episode and remember it; None once the time is used up."""
        if self.exhausted:
            return None
        began = time.perf_counter()
        trajectory, failure = None, ""

        def episode() -> Trajectory:
            fresh = self.environment()
            return play_through(fresh, task, script(fresh))

        try:
            trajectory = within(self.limit, episode)
        except Hangs as error:
            failure = f"hangs: {error}"
        except (Exception, SystemExit) as error:
            told = str(error) if isinstance(error, RenshuError) else f"{type(error).__name__}: {error}"
            failure = f"play_failed: {told}"
        play = Play(policy, split, task, trajectory, failure, time.perf_counter() - began)
        self.plays.append(play)
        return play


def gold(environment: Environment) -> Moves:
    return environment.solve()


def replayed(trajectory: Trajectory) -> list[Move]:
    """The calls and replies of an episode as moves, one call a turn; thoughts are left out."""
    moves: list[Move] = []
    for message in trajectory.messages:
        if message.role == "assistant":
            moves += [Call(asked.name, asked.arguments) for asked in message.tool_calls]
            moves += [] if message.tool_calls else [say(message.content)]
    return moves


def saying(moves: Sequence[Move], text: str) -> Script:
    """The moves, then the same reply for as long as the episode goes on."""
    return lambda _: iter([*moves, *repeat(say(text), 100)])


def cheap_policies(opening: Sequence[Message], task: Task, example: Call | None) -> Mapping[str, Script]:
    """What takes no skill. example: a call of the gold solution, to be repeated without end."""
    prompt = "\n".join(message.content for message in opening)

    def random_calls(environment: Environment) -> Iterator[Move]:
        random = generator("check", task.id)
        schemas = [spec.schema["function"] for spec in environment.tools()]
        for _ in range(max(0, environment.max_turns - 1)):
            if schemas:
                schema = random.choice(schemas)
                yield call(schema["name"], **_arguments(schema["parameters"], random, prompt, task))
        while True:
            yield say("Done.")

    policies: dict[str, Script] = {
        "idle": saying((), ""),
        "echo": saying((), prompt),
        "ramble": saying((), RAMBLE),
        "random calls": random_calls,
    }
    if example is not None:
        policies["one call repeated"] = repeating(example)
    return policies


def repeating(move: Move) -> Script:
    """The same move in all turns but the last."""

    return lambda environment: iter([*repeat(move, environment.max_turns - 1), *repeat(say("Done."), 100)])


def _arguments(schema: Mapping[str, Any], random: Random, prompt: str, task: Task) -> dict[str, Any]:
    """Arguments that fit a tool's schema; an optional one is given half of the time."""
    required = schema.get("required", ())
    return {
        name: _value(kind, random, prompt, task)
        for name, kind in schema.get("properties", {}).items()
        if name in required or random.random() < 0.5
    }


def _value(schema: Mapping[str, Any], random: Random, prompt: str, task: Task) -> Any:
    if "enum" in schema:
        return random.choice(list(schema["enum"]))
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return _value(options[0], random, prompt, task)
    kind = schema.get("type")
    if kind == "object":
        return _arguments(schema, random, prompt, task)
    if kind == "array":
        return [_value(schema.get("items") or {}, random, prompt, task)]
    if kind == "boolean":
        return random.random() < 0.5
    if kind in ("integer", "number"):
        known = [v for v in task.fields.values() if isinstance(v, int) and not isinstance(v, bool)]
        return random.choice([*known, random.randint(0, 9)])
    if schema.get("format") in ("date", "date-time"):
        day = f"2026-{random.randint(1, 12):02}-{random.randint(1, 28):02}"
        return day if schema["format"] == "date" else f"{day}T12:00:00"
    return random.choice(prompt.split() or ["a"]).strip(".,?!;:\"'")
