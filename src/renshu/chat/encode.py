"""Text → token ids, where control tokens come from the template and never from what somebody wrote.

A *control token* structures the dialogue: every special token of the tokenizer, every added token of the form
`<|…|>`, and every stop token. Other added tokens (`<tool_call>`, `<think>`) are ordinary text.

Messages are *guarded* before they are rendered: a control token inside them gets a sentinel behind its
first character. When the rendered text is encoded, it is cut at its true control tokens, and a guarded one
is cut in two at the sentinel: both halves are encoded as text, and no merge can put them together again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Any

SENTINEL = "\ufdd0"  # a noncharacter; one that was in a message is doubled, so that it survives
_HALF = re.compile("[\ud800-\udfff]")  # half a surrogate pair: no character, and no tokenizer takes it
_SINGLE = re.compile(f"(?<!{SENTINEL}){SENTINEL}(?!{SENTINEL})")


class Encoder:
    """Encodes rendered dialogues chunk by chunk (control token and the text behind it), each distinct chunk
    once.
    """

    def __init__(self, tokenizer: Any, extra_control: Iterable[str] = ()) -> None:
        added = tokenizer.added_tokens_decoder.values()
        self._tokenizer = tokenizer
        self.control = frozenset(
            token.content
            for token in added
            if len(token.content) > 1
            and (
                token.special
                or token.content.startswith(("<|", "<｜"))
                or token.content in set(extra_control)
            )
        )
        # A token that swallows the space to its left must be encoded together with it: never cut there.
        cut = [t.content for t in added if t.content in self.control and not (t.lstrip or t.single_word)]
        self._find = _any_of([*self.control, SENTINEL])
        self._cut = _any_of(cut)
        self._newline = self._plain_ids("\n")
        self._chunk = lru_cache(maxsize=8192)(self._encode_chunk)

    def guard(self, text: str) -> str:
        """Mark the control tokens in `text`, so that `encode` takes them for text; half characters become
        `?`.
        """
        return self._find.sub(lambda match: f"{match[0][0]}{SENTINEL}{match[0][1:]}", _HALF.sub("?", text))

    def guard_all(self, value: Any) -> Any:
        """`guard` every string in nested lists and dicts, keys included."""
        if isinstance(value, str):
            return self.guard(value)
        if isinstance(value, dict):
            return {self.guard_all(key): self.guard_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard_all(item) for item in value]
        return value

    def encode(self, text: str) -> list[int]:
        """The ids of a rendered, guarded text. Adds nothing: BOS is there if the template wrote it."""
        starts = [0, *(match.start() for match in self._cut.finditer(text)), len(text)]
        chunks = (text[start:end] for start, end in pairwise(starts))
        return [token for chunk in chunks if chunk for token in self._chunk(chunk)]

    def encode_behind(self, context: str, text: str) -> list[int]:
        """The ids of `text` behind `context`, which is already encoded and stays as it is."""
        before, whole = self.encode(context), self.encode(context + text)
        return whole[len(before) :] if whole[: len(before)] == before else self.encode(text)

    def _encode_chunk(self, chunk: str) -> tuple[int, ...]:
        first, *rest = (part.replace(SENTINEL * 2, SENTINEL) for part in _SINGLE.split(chunk))
        ids = self._plain_ids(first)
        for part in rest:
            ids += self._inner_ids(part)
        return tuple(ids)

    def _plain_ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _inner_ids(self, text: str) -> list[int]:
        """The ids of text that does not begin a chunk: behind a newline, lest SentencePiece add its prefix
        space.
        """
        ids = self._plain_ids("\n" + text)
        behind = len(self._newline)
        return ids[behind:] if ids[:behind] == self._newline else self._plain_ids(text)


def unguard(text: str) -> str:
    """A rendered text as people read it."""
    return _SINGLE.sub("", text).replace(SENTINEL * 2, SENTINEL)


def _any_of(strings: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(set(strings), key=lambda string: (-len(string), string))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
