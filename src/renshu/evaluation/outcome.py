"""How an episode ended, as far as numbers are made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from renshu.errors import DataError
from renshu.evaluation.records import final_answer
from renshu.jsonl import read_rows


class Tokens(NamedTuple):
    """Of an episode, or means. prompt: as an API is sent them, at every turn the whole dialogue before it.

    cached: of those of prompts, found in the server's cache; None where no server told.
    """

    prompt: float
    sampled: float
    cached: float | None = None

    def record(self) -> dict[str, float]:
        """As JSON, without what nobody told."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@dataclass(frozen=True)
class Outcome:
    """How one episode ended. success, reward: None where unknown; unknown is not zero.

    tokens: None in files that do not tell. answer: what was said last, None if the episode was cut.
    """

    task: str
    success: bool | None
    reward: float | None
    tokens: Tokens | None = None
    answer: str | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Outcome:
        """From an `outcome_record`. Raises DataError if it is none."""
        try:
            return cls(
                _checked(record["task"], str),
                _checked(record["success"], bool | None),
                _checked(record["reward"], float | int | None),
                _tokens(record.get("tokens")),
                final_answer(record),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"no outcome of an episode: {type(error).__name__}: {error}") from None


def read_outcomes(path: Path) -> list[Outcome]:
    """What an evaluation file tells. Raises DataError if it is damaged."""
    return [Outcome.of(record) for record in read_rows(path)]


def tokens_a_task(outcomes: Iterable[Outcome]) -> Tokens | None:
    """Means over the outcomes; None if that of any is unknown, since those known need not be like it."""
    counted = [outcome.tokens for outcome in outcomes]
    known = [tokens for tokens in counted if tokens is not None]
    if not known or len(known) < len(counted):
        return None
    cached = [tokens.cached for tokens in known if tokens.cached is not None]
    return Tokens(
        fmean(tokens.prompt for tokens in known),
        fmean(tokens.sampled for tokens in known),
        fmean(cached) if len(cached) == len(known) else None,
    )


def _tokens(counted: Mapping[str, Any] | None) -> Tokens | None:
    if counted is None:
        return None
    cached = counted.get("cached")
    return Tokens(int(counted["prompt"]), int(counted["sampled"]), None if cached is None else int(cached))


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r}")
    return value
