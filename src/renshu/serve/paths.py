"""Tokens are the truth in serving, too: when a conversation comes back, it goes on from the tokens that
were sampled, thoughts included, as an episode does; a client returns only their text.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from renshu.chat import ChatFormat
from renshu.chat.wire import as_in_training
from renshu.types import Message


@dataclass(frozen=True)
class Opening:
    """The prompt of a request. messages: as an episode would have them, known thoughts put back."""

    ids: list[int]
    messages: list[Message]


class Paths:
    """The latest conversations, by what a client knows of them; at most `limit` tokens of paths."""

    def __init__(self, chat: ChatFormat, limit: int = 1 << 20) -> None:
        self.chat, self.limit = chat, limit
        self._known: OrderedDict[bytes, tuple[array[int], list[Message]]] = OrderedDict()
        self._tokens = 0

    def open(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> Opening:
        """The prompt of a conversation, as in training: behind the sampled path where it is known."""
        last = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == "assistant"), -1)
        found = self._known.get(_key(messages[: last + 1], tools)) if last >= 0 else None
        plain = as_in_training(messages)
        if found is None:
            return Opening(self.chat.prompt(plain, tools), plain)
        path, before = found
        new = plain[last + 1 :]
        advance = self.chat.advance(list(path), before, new, tools)
        ids = advance.ids if advance.fresh else [*path, *advance.ids]
        return Opening(ids, [*before, *new])

    def keep(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        opening: Opening,
        sampled: Message,
        path: Sequence[int],
    ) -> None:
        """Remember a path that ends in its stop token. messages: the request's, and the answer as the client
        gets it. sampled: that answer as an episode has it.
        """
        key = _key(messages, tools)
        if (earlier := self._known.pop(key, None)) is not None:
            self._tokens -= len(earlier[0])
        self._known[key] = array("q", path), [*opening.messages, sampled]
        self._tokens += len(path)
        while self._tokens > self.limit:
            _, (old, _) = self._known.popitem(last=False)
            self._tokens -= len(old)


def _key(messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> bytes:
    """Equal for what a client sends back, with or without the thoughts it was given."""
    said = [
        [m.role, m.content, m.tool_call_id, [[c.id, c.name, c.arguments] for c in m.tool_calls]]
        for m in messages
    ]
    return hashlib.blake2b(json.dumps([said, tools], sort_keys=True).encode()).digest()
