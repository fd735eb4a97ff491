"""One answer while it is being sampled: its text, what of it may be shown, and where a stop text ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from renshu.chat import ChatFormat, Reply
from renshu.chat.arguments import before_marker
from renshu.types import Message


@dataclass(frozen=True)
class Delta:
    """What is new in the answer `choice`. tokens: sampled since the last delta, as (id, log-prob)."""

    choice: int
    content: str = ""
    reasoning: str = ""
    tokens: tuple[tuple[int, float], ...] = ()


Tell = Callable[[Delta], None]


class Turn:
    """Watches the tokens of one answer. `tell` gets each delta of content that no later token can change."""

    def __init__(self, chat: ChatFormat, choice: int, stops: Sequence[str], tell: Tell | None) -> None:
        self.choice = choice
        self.ids: list[int] = []
        self.tokens: list[tuple[int, float]] = []
        self.stopped_at: int | None = None  # in the text: where a stop text begins
        self._chat, self._stops, self._tell = chat, stops, tell
        self._text = ""
        self._start = self._read = 0  # tokens before `_read` are in the text; from `_start` on, decoded anew
        self._sent, self._sent_tokens, self._thought_sent = "", 0, False

    def watch(self, token: int, logprob: float) -> bool:
        """One more token; True ends the turn: it has written a stop text."""
        self.ids.append(token)
        self.tokens.append((token, logprob))
        if self._tell is None and not self._stops:
            return False
        if token not in self._chat.stop_ids:
            self._decode()
        found = [place for stop in self._stops if (place := self._text.find(stop)) >= 0]
        self.stopped_at = min(found, default=None)
        if self.stopped_at is None and self._tell is not None:
            self._show(self._settled())
        return self.stopped_at is not None

    def finish(self, *, torn: bool) -> Reply:
        """The whole answer. torn: no stop token ended it, so a call at its end may be half of one.

        Of a torn answer no call counts, and no half of a call is shown as content.
        """
        text = self._chat.said(self.ids)
        if self.stopped_at is not None:
            text = text[: min((p for s in self._stops if (p := text.find(s)) >= 0), default=len(text))]
        reply = self._chat.parse(text)
        if torn:
            content = self._chat.settled(text) or ("" if reply.attempts else reply.content)
            reply = Reply(content, reply.reasoning)
        return reply

    def show_rest(self, message: Message) -> None:
        """Tell what of the finished message has not been told."""
        if self._tell is not None:
            self._show(message.content, message.reasoning)

    def _show(self, content: str, reasoning: str | None = None) -> None:
        new = content[len(self._sent) :]
        if new and not self._thought_sent:
            reasoning = self._chat.parse(self._text).reasoning
        thought = "" if self._thought_sent else reasoning or ""
        if not new and not thought:
            return
        self._sent, self._thought_sent = content, True
        tokens = tuple(self.tokens[self._sent_tokens :])
        self._sent_tokens = len(self.tokens)
        assert self._tell is not None
        if thought:
            self._tell(Delta(self.choice, reasoning=thought))
        if new:
            self._tell(Delta(self.choice, content=new, tokens=tokens))

    def _settled(self) -> str:
        certain = min((before_marker(self._text, stop) for stop in self._stops), default=len(self._text))
        return self._chat.settled(self._text[:certain])

    def _decode(self) -> None:
        """Add to the text what the last tokens say; half a character waits for its other half."""
        window = self._chat.said(self.ids[self._start :])
        if not window.endswith("\ufffd"):
            self._text += window[len(self._chat.said(self.ids[self._start : self._read])) :]
            self._start, self._read = self._read, len(self.ids)
