"""A model's turn → thought, text, calls. Strict: what a strict server would refuse is a typed error here,
in training, in evaluation and in serving alike.

A thought is what stands between `<think>` and the first `</think>` after it, before any call. Calls inside
a thought are drafts and never run; a thought that does not end is an error, since whatever follows it
cannot be trusted. Every reader is linear in the text.
"""

from __future__ import annotations

from renshu.chat.arguments import Malformed, before_marker, decode_value
from renshu.chat.hermes import Hermes
from renshu.chat.llama3 import Llama3
from renshu.chat.pythonic import Pythonic
from renshu.chat.reply import Dialect, ParseError, Reply

THINK, UNTHINK = "<think>", "</think>"
DIALECTS: tuple[Dialect, ...] = (Hermes(), Llama3(), Pythonic())


def parse_reply(text: str, dialect: Dialect, *, thought_open: bool = False) -> Reply:
    """Read one turn. `thought_open`: the prompt's last words were `<think>`, so the text begins inside a
    thought.
    """
    if thought_open:
        text = THINK + text.lstrip().removeprefix(THINK)
    thoughts: list[str] = []
    kept: list[str] = []
    while 0 <= (begin := text.find(THINK)) < dialect.start(text):
        end = text.find(UNTHINK, begin)
        if end < 0:
            return _unclosed("".join(kept) + text[:begin], thoughts, text[begin + len(THINK) :], dialect)
        thoughts.append(text[begin + len(THINK) : end].strip())
        kept.append(text[:begin])
        text = text[end + len(UNTHINK) :].lstrip("\n")
    reasoning = "\n\n".join(filter(None, thoughts)) or None
    rest = "".join(kept) + text
    content, attempts = dialect.read(rest)
    if not attempts and (error := _fenced_call(content)):
        attempts = (error,)
    return Reply(content, reasoning, attempts)


def settled_content(text: str, dialect: Dialect, *, thought_open: bool = False) -> str:
    """What of the content of an unfinished turn is certain, whatever follows: to be shown while it grows.

    It only ever grows, and the content of the finished turn begins with it.
    """
    if thought_open:
        text = THINK + text.lstrip().removeprefix(THINK)
    kept = ""
    while 0 <= (begin := text.find(THINK)) < dialect.start(text):
        kept += text[:begin]
        end = text.find(UNTHINK, begin)
        if end < 0:
            return kept[: dialect.settled(kept)].strip()
        text = text[end + len(UNTHINK) :].lstrip("\n")
    text = kept + text
    return text[: min(dialect.settled(text), before_marker(text, THINK))].strip()


def _unclosed(before: str, thoughts: list[str], thought: str, dialect: Dialect) -> Reply:
    drafted = dialect.start(thought) < len(thought)
    error = (
        ParseError(
            "call_inside_unclosed_think", f"the call stands inside a thought without {UNTHINK}: not executed"
        )
        if drafted
        else ParseError("unclosed_think", f"the thought does not end with {UNTHINK}")
    )
    return Reply(before.strip(), "\n\n".join(filter(None, [*thoughts, thought.strip()])) or None, (error,))


def _fenced_call(text: str) -> ParseError | None:
    """An error if the whole message is a code fence around a call; a fence in prose is only text."""
    if not (text.startswith("```") and text.endswith("```") and len(text) > 6):
        return None
    body = text[3:-3].removeprefix("json").strip()
    try:
        value, end = decode_value(body)
    except Malformed:
        return None
    if end != len(body) or not isinstance(value, dict) or "name" not in value:
        return None
    if not {"arguments", "parameters"} & value.keys():
        return None
    return ParseError("fenced_call", "the call stands in a code fence: not executed")
