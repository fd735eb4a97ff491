"""What a model's turn says once it is read: thought, text, and its calls, each well-formed or an error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from renshu.chat.arguments import ErrorKind
from renshu.types import Message, ToolCall


@dataclass(frozen=True)
class ParseError:
    """A call (or thought) that could not be read. `kind` is for counting, `detail` for the model."""

    kind: ErrorKind
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True)
class Reply:
    """A parsed assistant turn.

    `attempts` holds calls and errors in the order in which the model wrote them, so that each gets its own
    answer, in order. `content` is the text around well-formed calls; what could not be read stays in it, so
    nothing is lost.
    """

    content: str = ""
    reasoning: str | None = None
    attempts: tuple[ToolCall | ParseError, ...] = ()

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return tuple(attempt for attempt in self.attempts if isinstance(attempt, ToolCall))

    @property
    def errors(self) -> tuple[ParseError, ...]:
        return tuple(attempt for attempt in self.attempts if isinstance(attempt, ParseError))

    @property
    def message(self) -> Message:
        """The turn as it enters the history."""
        return Message("assistant", self.content, reasoning=self.reasoning, tool_calls=self.calls)


class Dialect(Protocol):
    """How a family of models writes calls. `read` and `spell` are each other's inverse."""

    name: str

    def start(self, text: str) -> int:
        """Where the first call of `text` begins; `len(text)` if there is none. A thought can only stand
        before it.
        """
        ...

    def settled(self, text: str) -> int:
        """How many characters of a text that may go on can no longer become part of a call."""
        ...

    def read(self, text: str) -> tuple[str, tuple[ToolCall | ParseError, ...]]:
        """The text around the calls, and the calls, in order."""
        ...

    def spell(self, calls: tuple[ToolCall, ...], *, after_text: bool) -> str:
        """The calls as the model writes them; `after_text` if other text stands before them."""
        ...
