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
    """Of an episode, or means. prompt: as an API is sent them, at every turn the whole dialogue before it."""

    prompt: float
    sampled: float


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
            counted = record.get("tokens")
            return cls(
                _checked(record["task"], str),
                _checked(record["success"], bool | None),
                _checked(record["reward"], float | int | None),
                None if counted is None else Tokens(int(counted["prompt"]), int(counted["sampled"])),
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
    return Tokens(fmean(tokens.prompt for tokens in known), fmean(tokens.sampled for tokens in known))


def _checked(value: Any, kind: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r}")
    return value
