"""Moves: what a scripted policy does in an environment, written as a generator.

def solve(self):
    day = yield call("calendar", day="next Friday")   # the tool's answer, as text
    yield think("the 11th is free")                   # becomes the thought of the next move
    yield call("book", day=day)
    yield say("Booked.")                              # a reply without calls; gives back the user's answer
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from renshu.errors import ContractError


@dataclass(frozen=True)
class Think:
    """A thought. It is written down together with the move that follows it."""

    text: str


@dataclass(frozen=True)
class Call:
    """A call of a tool, alone in its turn."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Say:
    """A reply without calls."""

    text: str


Move = Think | Call | Say
Moves = Generator[Move, str, None]


def think(text: str) -> Think:
    """A thought, written down together with the next move; `yield` gives back an empty text."""
    return Think(_text("think", text))


def call(name: str, /, **arguments: Any) -> Call:
    """A call of the tool `name`; `yield` gives back its answer as text."""
    return Call(name, arguments)


def say(text: str) -> Say:
    """A reply without calls; `yield` gives back what the user says, unless the episode is over."""
    return Say(_text("say", text))


def _text(move: str, text: object) -> str:
    """Raises ContractError for anything else: a message holds text, and 7 is not "7"."""
    if not isinstance(text, str):
        raise ContractError(f"{move}({text!r}): expected text, e.g. {move}(str(...))")
    return text
