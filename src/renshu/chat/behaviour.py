"""What a chat template does, found by rendering small dialogues with it: never by its name or its bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from renshu.chat.jinja import JinjaTemplate
from renshu.chat.parse import DIALECTS, THINK, parse_reply
from renshu.chat.reply import Dialect
from renshu.errors import TemplateError
from renshu.types import ToolCall

Render = Callable[..., str | None]
Arguments = Literal["dict", "json"]

_ARGUMENTS: tuple[Arguments, ...] = ("dict", "json")
_ARGUMENTS_GIVEN = {"zq_key": "zq value"}

_USER = {"role": "user", "content": "zq-ask"}
_SAID = {"role": "assistant", "content": "zq-said"}
_SYSTEM = {"role": "system", "content": "zq-system"}
_RESULT = {"role": "tool", "content": "zq-result", "name": "zq_tool", "tool_call_id": "zqcall001"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "zq_tool",
        "description": "zq-about",
        "parameters": {
            "type": "object",
            "properties": {"zq_key": {"type": "string"}},
            "required": ["zq_key"],
        },
    },
}


@dataclass(frozen=True)
class Behaviour:
    """What a template supports and what it does unasked.

    turn_end: the control token that ends the assistant's turn; the model is trained to write it.
    tools: "native", or "prompt": the template ignores tools (or writes calls in a form we cannot read), so
        they are described in the system prompt, in Hermes' form.
    dialect: how calls are written and read. arguments: whether the template wants them as a dict or as JSON
    text. call_content: the content that a turn of calls alone must have ("" or None), or the calls are not
    rendered. text_beside_calls, parallel_calls: whether text may stand before calls, and whether there may
    be several. reasoning_field: the message key of the thought; None: thoughts are written into the
    content. call_gap: what the template writes between content and the first call. drops_thoughts: thoughts
    of earlier turns vanish when the dialogue goes on. opens_thought: the prompt ends in `<think>`, so the
    model's text begins inside a thought. system: "native", or "fold": the system text is put before the
    first user message, with a blank line. alternates: user and assistant must take turns. default_system: a
    system prompt nobody wrote, or None. dated: the prompt holds a date (pinned). bos: the template writes
    the BOS token.
    """

    turn_end: str
    tools: Literal["native", "prompt"]
    dialect: Dialect
    arguments: Arguments
    call_content: str | None
    text_beside_calls: bool
    parallel_calls: bool
    reasoning_field: str | None
    call_gap: str
    drops_thoughts: bool
    opens_thought: bool
    system: Literal["native", "fold"]
    alternates: bool
    default_system: str | None
    dated: bool
    bos: bool


def observe(template: JinjaTemplate, control: Collection[str]) -> Behaviour:
    """Probe a template. `control`: the tokenizer's control tokens. Raises TemplateError if no turn can be
    trained.
    """

    def render(
        messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None, **options: bool
    ) -> str | None:
        try:
            return template.render(messages, tools, **options)
        except TemplateError:
            return None

    prompt = template.render([_USER], prompt=True)
    turn_end = _turn_end(template, control)
    field = _reasoning_field(render)
    calls = _calls(render, turn_end)
    bos = template.special_tokens.get("bos_token", "")
    return Behaviour(
        turn_end=turn_end,
        tools="native" if calls else "prompt",
        dialect=calls.dialect if calls else DIALECTS[0],
        arguments=calls.arguments if calls else "dict",
        call_content=calls.content if calls else "",
        text_beside_calls=calls.beside if calls else True,
        parallel_calls=calls.parallel if calls else True,
        reasoning_field=field,
        call_gap=calls.gap if calls else "\n",
        drops_thoughts=_drops_thoughts(render, field),
        opens_thought=prompt.rstrip().endswith(THINK),
        system="native" if _SYSTEM["content"] in (render([_SYSTEM, _USER]) or "") else "fold",
        alternates=render([_USER, _USER]) is None,
        default_system=_default_system(render),
        dated=template.dated,
        bos=bool(bos) and prompt.startswith(bos),
    )


def header_of(prompt: str) -> str:
    """A prompt without the `<think>` that the template may have written behind the assistant's header."""
    return prompt[: prompt.rindex(THINK)] if prompt.rstrip().endswith(THINK) else prompt


def _turn_end(template: JinjaTemplate, control: Collection[str]) -> str:
    text = template.render([_USER, _SAID])
    behind = text[text.find(_SAID["content"]) + len(_SAID["content"]) :]
    found = [(behind.find(token), -len(token), token) for token in control if token in behind]
    if _SAID["content"] not in text or not found:
        raise TemplateError(
            "The chat template does not end the assistant's turn with a control token of this tokenizer, so "
            f"the model would never learn to stop (behind the turn stands {behind[:40]!r}). Use another "
            "template, or template='fallback'."
        )
    return min(found)[2]


def _reasoning_field(render: Render) -> str | None:
    for field in ("reasoning_content", "reasoning", "thinking"):
        if "zq-thought" in (render([_USER, {**_SAID, field: "zq-thought"}]) or ""):
            return field
    return None


def _drops_thoughts(render: Render, field: str | None) -> bool:
    thinking = (
        {**_SAID, field: "zq-thought"}
        if field
        else {**_SAID, "content": f"{THINK}\nzq-thought\n</think>\n\nzq-said"}
    )
    later = [render([_USER, thinking, _USER, _SAID]), render([_USER, thinking, _RESULT, _SAID])]
    return any(text is not None and "zq-thought" not in text for text in later)


@dataclass(frozen=True)
class _Calls:
    dialect: Dialect
    arguments: Arguments
    content: str | None
    beside: bool
    parallel: bool
    gap: str


def _calls(render: Render, turn_end: str) -> _Calls | None:
    """How the template writes calls; None if it ignores tools, calls or results, or if we cannot read its
    calls.
    """
    prompt = render([_USER], [_TOOL], prompt=True)
    if prompt is None or "zq_tool" not in prompt:
        return None

    def body(turn: Mapping[str, Any]) -> str:
        """What the template writes for an assistant turn between its header and its end."""
        text, header = render([_USER, turn], [_TOOL]) or "", header_of(prompt)
        return text[len(header) :].partition(turn_end)[0] if text.startswith(header) else ""

    for arguments in _ARGUMENTS:
        for content in ("", None):
            turn = _call_turn(arguments, content)
            dialect = _reader(body(turn), 1)
            if dialect is None or "zq-result" not in (
                render([_USER, turn, _RESULT], [_TOOL], prompt=True) or ""
            ):
                continue
            beside = body({**turn, "content": "zq-said"})
            kept = _reader(beside, 1, "zq-said") is not None
            gap = beside.partition("zq-said")[2]
            parallel = _reader(body({**turn, "tool_calls": turn["tool_calls"] * 2}), 2) is not None
            return _Calls(
                dialect, arguments, content, kept, parallel, gap[: dialect.start(gap)] if kept else ""
            )
    return None


def _call_turn(arguments: str, content: str | None) -> dict[str, Any]:
    given: Any = _ARGUMENTS_GIVEN if arguments == "dict" else json.dumps(_ARGUMENTS_GIVEN)
    call = {"type": "function", "id": "zqcall001", "function": {"name": "zq_tool", "arguments": given}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _reader(body: str, calls: int, content: str | None = None) -> Dialect | None:
    """The dialect that reads back exactly the probe's call, so many times, and the content if there was
    one.
    """
    wanted = (ToolCall("zq_tool", _ARGUMENTS_GIVEN),) * calls
    for dialect in DIALECTS:
        reply = parse_reply(body, dialect)
        if reply.attempts == wanted and (content is None or reply.content == content):
            return dialect
    return None


def _default_system(render: Render) -> str | None:
    """The system text that appears although nobody gave one."""
    without, given = render([_USER]), render([_SYSTEM, _USER])
    if without is None or given is None or _SYSTEM["content"] not in given:
        return None
    before, after = given.split(_SYSTEM["content"], 1)
    head = without[: without.find(_USER["content"])]
    tail = after[: after.find(_USER["content"])]
    if head.startswith(before) and head.endswith(tail) and len(head) > len(before) + len(tail):
        return head[len(before) : len(head) - len(tail)]
    return None
