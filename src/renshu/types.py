"""The nouns of Renshu: one meaning each, used by every folder above this file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import fmean
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A request of the model to run a tool. `arguments` is always a dict, never JSON text."""

    name: str
    arguments: dict[str, Any]
    id: str = ""


@dataclass(frozen=True)
class Message:
    """One turn of a dialogue, in OpenAI's shape. `reasoning` is the thought, kept beside `content`."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Task(Mapping[str, Any]):
    """One problem, read like a dict of its fields. `id` (`env/split/index`) is the root of all its seeds."""

    id: str
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, key: str) -> Any:
        return self.fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class Stop(StrEnum):
    """Why an episode ended."""

    ANSWERED = "answered"  # the model answered without a call and no user turn followed
    ENV_DONE = "env_done"  # the environment's terminator said so
    LENGTH = "length"  # the token budget or the context was used up
    TURNS = "turns"  # max_turns was reached
    TIMEOUT = "timeout"  # the episode's wall-clock limit
    ERROR = "error"  # infrastructure, not the policy: always unscored


@dataclass(frozen=True)
class Scored:
    """A known score: `value` is what we train on, `success` the truth we report (None: not defined).

    steps: of parts that judge every turn, weight × value of each turn (None: does not apply); such a part
    adds the mean of its known ones to `value`.
    """

    value: float
    parts: Mapping[str, float | None] = field(default_factory=dict)
    success: bool | None = None
    steps: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    @property
    def turns(self) -> tuple[float | None, ...]:
        """The sum over `steps` of each turn, None where none is known; empty without such parts."""
        known = (
            [worth for worth in turn if worth is not None] for turn in zip(*self.steps.values(), strict=True)
        )
        return tuple(sum(turn) if turn else None for turn in known)

    @property
    def outcome(self) -> float:
        """`value` without what the `steps` add to it."""
        known = [[worth for worth in part if worth is not None] for part in self.steps.values()]
        return self.value - sum(fmean(part) for part in known if part)


@dataclass(frozen=True)
class Unscored:
    """An unknown score. Unknown is not zero: it never enters a baseline or a mean."""

    reason: str


Score = Scored | Unscored


@dataclass(frozen=True)
class Segment:
    """A run of tokens of one origin, exactly as the model read or sampled them.

    ids: token ids, (n,). sampled: True if the model sampled them, its stop token included.
    logprobs: the sampler's temperature-scaled, untruncated log-probs, (n,), for sampled segments only.
    """

    ids: tuple[int, ...]
    sampled: bool = False
    logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} logprobs")
        if self.logprobs is not None and not self.sampled:
            raise ValueError("only sampled segments carry logprobs")


@dataclass(frozen=True)
class Trajectory:
    """All that happened in one episode.

    `segments` is the path of tokens at the end; `forks` are the earlier paths that were left behind because
    the template rewrote history (policy `fork`); each is a complete path from the first token.
    """

    task: Task
    segments: tuple[Segment, ...]
    messages: tuple[Message, ...]
    stop: Stop
    score: Score
    forks: tuple[tuple[Segment, ...], ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # turns, calls, bad_calls, tool_errors, timeouts

    def with_score(self, score: Score) -> Trajectory:
        return replace(self, score=score)

    @property
    def paths(self) -> tuple[tuple[Segment, ...], ...]:
        return (*self.forks, self.segments)

    @property
    def sampled_tokens(self) -> int:
        return sum(len(s.ids) for path in self.paths for s in path if s.sampled)


@dataclass(frozen=True)
class Group:
    """All trajectories of one task in one step: the unit of GRPO's baseline."""

    task: Task
    trajectories: tuple[Trajectory, ...]


@dataclass(frozen=True)
class Row:
    """One path of tokens to train on; the unit the trainer works with.

    ids: (n,). trained: (n,) bool; `trained[0]` is False, since nothing predicts the first token.
    logprobs: the sampler's log-prob of each trained token, in order, (trained.sum(),), or None (SFT).
    group: rows with equal `group` share a long prefix and stay in one micro-batch where the budget allows.
    """

    ids: tuple[int, ...]
    trained: tuple[bool, ...]
    logprobs: tuple[float, ...] | None = None
    group: str = ""

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.trained):
            raise ValueError(f"{len(self.ids)} ids but {len(self.trained)} mask entries")
        if self.trained and self.trained[0]:
            raise ValueError("the first token of a row cannot be trained: nothing predicts it")
        if self.logprobs is not None and len(self.logprobs) != sum(self.trained):
            raise ValueError(f"{sum(self.trained)} trained tokens but {len(self.logprobs)} logprobs")


@dataclass(frozen=True)
class Pair:
    """Two answers to one prompt: training makes `chosen` likelier, compared with `rejected`."""

    chosen: Row
    rejected: Row


@dataclass(frozen=True)
class Labelled:
    """One answer with a thumb up or down."""

    row: Row
    good: bool


def row_of(path: Sequence[Segment], group: str = "") -> Row:
    """The training row of one path: sampled tokens are trained, all others are context."""
    ids = tuple(i for segment in path for i in segment.ids)
    trained = tuple(segment.sampled for segment in path for _ in segment.ids)
    sampled = [segment for segment in path if segment.sampled]
    logprobs = None
    if sampled and all(segment.logprobs is not None for segment in sampled):
        logprobs = tuple(lp for segment in sampled for lp in segment.logprobs or ())
    return Row(ids=ids, trained=trained, logprobs=logprobs, group=group)
