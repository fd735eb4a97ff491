"""What every engine offers: `open(ids) → fork(seeds) → extend(ids) → await generate(sampling)`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from renshu.errors import ConfigError
from renshu.types import Segment

T = TypeVar("T")
Watch = Callable[[int, float], bool]  # told each sampled token and its log-prob; True ends the turn there


COOLEST = 1e-4  # below it no draw differs from greedy, but logits divided by it may overflow
TEMPERATURES = f"0 (greedy), or from {COOLEST} on"


def is_temperature(value: float) -> bool:
    """Whether a turn can be sampled at it."""
    return value == 0 or COOLEST <= value < float("inf")


@dataclass(frozen=True)
class Sampling:
    """How one turn is sampled; the only source of sampling values, whatever the checkpoint suggests.

    max_tokens: tokens of the turn, its stop token included. temperature: 0 is greedy. top_k: 0 is off.
    top_p, min_p: as in transformers; filters apply in the order top-k, top-p, min-p. stop_ids: tokens that
    end the turn and belong to it. Raises ConfigError for values out of range.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop_ids: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for name, value, valid, rule in (
            ("max_tokens", self.max_tokens, self.max_tokens >= 1, "at least 1"),
            ("temperature", self.temperature, is_temperature(self.temperature), TEMPERATURES),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0 and at most 1 (off)"),
            ("top_k", self.top_k, self.top_k >= 0, "0 (off) or more"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "between 0 (off) and 1"),
        ):
            if not valid:
                raise ConfigError(f"sampling.{name} is {value}: it must be {rule}")


@dataclass(frozen=True)
class Generated:
    """One sampled turn. finish: "stop" (a stop id ended it) or "length" (budget, context or watcher did)."""

    segment: Segment
    finish: Literal["stop", "length"]


@dataclass
class EngineStats:
    """Tokens since the engine was made.

    computed: fed to the model. naive: what re-prefilling the whole history for every turn of every completion
    would have fed. sampled: drawn from the model. untold: of `computed`, tokens of prompts of which a server
    does not say whether it computed them or found them in its cache.
    """

    computed: int = 0
    naive: int = 0
    sampled: int = 0
    untold: int = 0

    def count(self, *, history: int, sampled: int) -> None:
        """Count a turn of `sampled` tokens after `history` tokens. Nothing need be fed after the last one."""
        self.sampled += sampled
        self.naive += history + sampled - 1 if sampled else 0


class Session(Protocol):
    """One growing path of tokens."""

    ids: list[int]  # every token so far

    def extend(self, ids: Sequence[int]) -> None:
        """Append foreign tokens; computed once, when next needed. Raises ContextOverflow."""
        ...

    def fork(self, seeds: Sequence[int]) -> Sequence[Session]:
        """One new session per seed with the same tokens; this session stays open."""
        ...

    async def generate(self, sampling: Sampling, watch: Watch | None = None) -> Generated:
        """Sample one turn and append it; to be awaited inside `Engine.run`. `watch` sees every token."""
        ...

    def close(self) -> None:
        """Free what the session holds. Closing twice is harmless; anything else then raises EngineError."""
        ...


class Engine(Protocol):
    """A source of sampled tokens."""

    context: int  # tokens a session may hold
    stats: EngineStats

    def open(self, ids: Sequence[int], *, seed: int) -> Session:
        """A session that starts with `ids`. Raises ContextOverflow, or EngineError if there are none."""
        ...

    def run(self, episodes: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        """Drive all episodes to their end; results in order. The first error in order is raised."""
        ...

    def refresh(self) -> None:
        """The weights changed: forget every cached key and value."""
        ...
