"""Preferences in a file of JSON lines, in the shapes that TRL reads, as pairs and thumbs of token rows.

    {"prompt": …, "chosen": …, "rejected": …}   two answers to one prompt
    {"chosen": …, "rejected": …}                two whole dialogues: what both begin with is their prompt
    {"prompt": …, "completion": …, "label": true}, {"messages": […], "label": true}   a thumb up or down

A prompt or an answer is a text or a list of messages, `tools` may be there. A text is one message: a prompt
the user's, an answer the assistant's. What belongs to the prompt is never trained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from renshu.chat import ChatFormat
from renshu.data.dialogues import read_message, read_schemas, reasons
from renshu.errors import DataError, TemplateError
from renshu.jsonl import parse_json, user_lines
from renshu.types import Labelled, Message, Pair, Row

ItemT = TypeVar("ItemT")
Messages = list[Message]
PAIRS = "`prompt`, `chosen` and `rejected`"
THUMBS = "`prompt`, `completion` and `label`"


@dataclass(frozen=True)
class Preferences(Generic[ItemT]):
    """lines: how many there were. set_aside: those that cannot be learned from, by reason."""

    items: tuple[ItemT, ...]
    lines: int
    set_aside: Mapping[str, int]


def read_pairs(path: Path, chat: ChatFormat) -> Preferences[Pair]:
    """The pairs of a file. Raises DataError if there is none that can be learned from."""
    return _read(path, lambda row: [_pair(row, chat)], PAIRS)


def read_labelled(path: Path, chat: ChatFormat) -> Preferences[Labelled]:
    """The thumbs of a file; a pair is two. Raises DataError if there is none that can be learned from."""
    return _read(path, lambda row: _thumbs(row, chat), THUMBS)


def _read(path: Path, read: Callable[[dict[str, Any]], list[ItemT]], expected: str) -> Preferences[ItemT]:
    items: list[ItemT] = []
    set_aside: Counter[str] = Counter()
    lines = user_lines(path)
    for line in lines:
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError("no object")
            items += read(row)
        except (ValueError, TypeError, KeyError, AttributeError, DataError, TemplateError) as error:
            set_aside[f"no key {error}" if isinstance(error, KeyError) else str(error)] += 1
    if not items:
        why = reasons(set_aside) or "the file is empty"
        raise DataError(f"data: {path} holds nothing to learn from ({why}); expected {expected} in a line")
    return Preferences(tuple(items), len(lines), set_aside)


def _pair(row: Mapping[str, Any], chat: ChatFormat) -> Pair:
    prompt, chosen, rejected = _sides(row.get("prompt"), row["chosen"], row["rejected"])
    tools = read_schemas(row.get("tools"))
    return Pair(answer_row(chat, prompt, chosen, tools), answer_row(chat, prompt, rejected, tools))


def _thumbs(row: Mapping[str, Any], chat: ChatFormat) -> list[Labelled]:
    if "chosen" in row or "rejected" in row:
        pair = _pair(row, chat)
        return [Labelled(pair.chosen, True), Labelled(pair.rejected, False)]
    label = row["label"]
    if not isinstance(label, bool):
        raise ValueError("label that is not true or false")
    if "messages" in row:
        whole = _messages(row["messages"], "user")
        first = next((i for i, message in enumerate(whole) if message.role == "assistant"), len(whole))
        prompt, answer = whole[:first], whole[first:]
    else:
        prompt, answer = _messages(row["prompt"], "user"), _messages(row["completion"], "assistant")
        if answer[: len(prompt)] == prompt:
            answer = answer[len(prompt) :]
    _require_answer(prompt, answer)
    return [Labelled(answer_row(chat, prompt, answer, read_schemas(row.get("tools"))), label)]


def _sides(prompt: Any, chosen: Any, rejected: Any) -> tuple[Messages, Messages, Messages]:
    """Prompt and both answers. Raises ValueError for what is no pair."""
    if prompt is None and isinstance(chosen, str) and isinstance(rejected, str):
        prompt, chosen, rejected = _split_texts(chosen, rejected)
    better, worse = _messages(chosen, "assistant"), _messages(rejected, "assistant")
    if _plain(better) == _plain(worse):
        raise ValueError("equal sides")
    asked = [] if prompt is None else _messages(prompt, "user")
    if all(side[: len(asked)] == asked for side in (better, worse)):  # each holds the whole dialogue
        better, worse = better[len(asked) :], worse[len(asked) :]
    if not asked or (isinstance(prompt, str) and better[:1] and better[0].role != "assistant"):
        shared = _shared(better, worse)
        asked, better, worse = better[:shared], better[shared:], worse[shared:]
    for side in (better, worse):
        _require_answer(asked, side)
    return asked, better, worse


def _split_texts(chosen: str, rejected: str) -> tuple[str, str, str]:
    """The prompt of two whole texts: what both begin with, up to the space before the first difference."""
    differ = (i for i, (a, b) in enumerate(zip(chosen, rejected, strict=False)) if a != b)
    shared = next(differ, min(len(chosen), len(rejected)))
    if shared and chosen[shared - 1] == " ":
        shared -= 1
    return chosen[:shared], chosen[shared:], rejected[shared:]


def _shared(one: Sequence[Message], other: Sequence[Message]) -> int:
    """How many messages two dialogues begin with alike, up to where the assistant speaks in both."""
    pairs = list(zip(_plain(one), _plain(other), strict=False))
    shared = next((i for i, (left, right) in enumerate(pairs) if left != right), len(pairs))
    while shared and not all(
        len(side) > shared and side[shared].role == "assistant" for side in (one, other)
    ):
        shared -= 1
    return shared


def _plain(messages: Sequence[Message]) -> Messages:
    """Without the ids of calls, which are random."""
    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id="") for call in message.tool_calls),
            tool_call_id=None,
        )
        for message in messages
    ]


def _messages(value: Any, role: Any) -> Messages:
    """A list of messages, or a text that `role` said."""
    if isinstance(value, str):
        return [Message(role, value)]
    if isinstance(value, list):
        return [read_message(message) for message in value]
    raise ValueError("neither a text nor a list of messages")


def _require_answer(prompt: Sequence[Message], answer: Sequence[Message]) -> None:
    if not prompt or not any(message.content.strip() for message in prompt):
        raise ValueError("an empty prompt")
    if prompt[-1].role == "assistant":
        raise ValueError("a prompt that ends with the assistant")
    said = [message for message in answer if message.role == "assistant"]
    if not any(m.content.strip() or m.tool_calls or (m.reasoning or "").strip() for m in said):
        raise ValueError("an empty side")
    if answer[0].role != "assistant":
        raise ValueError("an answer that does not begin with the assistant")


def answer_row(
    chat: ChatFormat, prompt: Sequence[Message], answer: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> Row:
    """The row of an answer: trained is what the model would have sampled of it, nothing of the prompt.

    Raises DataError where the chat format makes more than one path of tokens of the dialogue.
    """
    rows = chat.supervised_rows([*prompt, *answer], tools)
    before = chat.prompt(prompt, tools)
    (row, *others) = rows
    if others or list(row.ids[: len(before)]) != before:
        raise DataError("several paths of tokens")
    return Row(row.ids, (False,) * len(before) + row.trained[len(before) :])
