"""Chat completions of any OpenAI-compatible endpoint: dialogues in, replies and what they cost out.

Messages only: there are no token ids, so nothing can be trained on what such a model says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from renshu.chat import ParseError, Reply
from renshu.chat.arguments import Malformed, decode_arguments
from renshu.chat.wire import write_message
from renshu.engines.openai_client import Endpoint, Refused
from renshu.errors import ConfigError, ContextOverflow, InfrastructureError
from renshu.types import Message, ToolCall

CUT = frozenset({"length", "content_filter"})  # the reply may be torn: none of its calls is run
ODD = re.compile(r"[^A-Za-z0-9_-]")  # in the name of a tool, which strict servers refuse


class Usage(NamedTuple):
    """Tokens as the server counts them. cached: of the prompt, found in its cache; None: not told."""

    prompt: int
    sampled: int
    cached: int | None = None

    def plus(self, other: Usage) -> Usage:
        known = self.cached is not None and other.cached is not None
        cached = (self.cached or 0) + (other.cached or 0) if known else None
        return Usage(self.prompt + other.prompt, self.sampled + other.sampled, cached)


@dataclass(frozen=True)
class Answer:
    """A reply. wire: the assistant message as it goes back to the server, each attempt with its own id.

    cut: the server broke it off. usage: None if the server does not tell.
    """

    reply: Reply
    wire: dict[str, Any]
    cut: bool
    usage: Usage | None

    @property
    def ids(self) -> list[str]:
        """Of the attempts, in order."""
        return [call["id"] for call in self.wire.get("tool_calls", ())]


class ChatModel:
    """A model behind an endpoint. notes: what it would not do as asked, in sentences, each once."""

    def __init__(self, model: str, endpoint: Endpoint) -> None:
        self.model, self.endpoint = model, endpoint
        self.notes: list[str] = []
        self._budget_key = "max_tokens"
        self._tells_temperature = True
        self._answered = False

    async def reply(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        temperature: float,
    ) -> Answer:
        """The next turn. messages, tools: in OpenAI's shape.

        Raises ContextOverflow for a dialogue that is too long, InfrastructureError where there is no answer,
        ConfigError for what would go wrong at every request, EngineError when the server is gone.
        """
        while True:
            body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
            body |= {"tools": list(tools)} if tools else {}  # an empty list is refused by some
            body |= {"temperature": temperature} if self._tells_temperature else {}
            body[self._budget_key] = max_tokens
            try:
                answer = await self.endpoint.post("/chat/completions", body, read_answer)
            except Refused as refused:
                if not self._adapts(refused, body):
                    raise self._meaning(refused) from None
            else:
                self._answered = True
                return answer

    def _adapts(self, refused: Refused, body: Mapping[str, Any]) -> bool:
        """Whether asking again in another way helps: newer models want other names, or no temperature."""
        named = {refused.param} if refused.param else set(re.findall(r"\w+", refused.text))
        if "max_tokens" in named and "max_tokens" in body:
            self._budget_key = "max_completion_tokens"
            return True
        if "temperature" in named and "temperature" in body:
            if self._tells_temperature:
                asked = body["temperature"]
                self.notes.append(
                    f"{self.model} takes no temperature: it sampled at its own, not at {asked:g}"
                )
            self._tells_temperature = False
            return True
        return False

    def _meaning(self, refused: Refused) -> Exception:
        text = f"{self.endpoint.url} refuses {self.model} ({refused.status}): {refused.text}"
        too_long = refused.code == "context_length_exceeded" or "context length" in refused.text.lower()
        if refused.status == 413 or too_long:
            return ContextOverflow(text)
        # Refused from the start: always refused. Later it is this dialogue that the server dislikes.
        return InfrastructureError(text) if self._answered else ConfigError(text)


def read_answer(body: Any) -> Answer:
    """A chat completion. Raises ValueError if it is none, which is the server's fault, not the model's."""
    if not isinstance(body, Mapping):
        raise ValueError("expected an object")
    if body.get("error"):  # some send an error with status 200
        error = body["error"]
        raise ValueError(str(error.get("message", error)) if isinstance(error, Mapping) else str(error))
    choices = body.get("choices")
    choice: Any = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, Mapping) else None
    if not isinstance(message, Mapping):
        raise ValueError("it has no choices[0].message")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise ValueError("message.tool_calls is no list")
    attempts = tuple(map(_attempt, calls))
    content = _text(message.get("content")) or _text(message.get("refusal"))
    thought = message.get("reasoning_content") or message.get("reasoning")
    wire: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        wire = {"role": "assistant", "content": content or None, "tool_calls": _numbered(calls, attempts)}
        ids = [call["id"] for call in wire["tool_calls"]]
        attempts = tuple(
            ToolCall(attempt.name, attempt.arguments, identity) if isinstance(attempt, ToolCall) else attempt
            for attempt, identity in zip(attempts, ids, strict=True)
        )
    reply = Reply(content, thought if isinstance(thought, str) else None, attempts)
    return Answer(reply, wire, choice.get("finish_reason") in CUT, read_usage(body.get("usage")))


def read_usage(value: Any) -> Usage | None:
    """Tokens, or None where the server does not tell both counts."""
    if not isinstance(value, Mapping):
        return None
    details = value.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    prompt: Any = value.get("prompt_tokens")
    sampled: Any = value.get("completion_tokens")
    if not _is_count(prompt) or not _is_count(sampled):
        return None
    return Usage(prompt, sampled, cached if _is_count(cached) else None)


def written(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The opening of an episode for the wire: calls of solved dialogues and their answers get ids."""
    result: list[dict[str, Any]] = []
    open_ids: list[str] = []
    for message in messages:
        record = write_message(message)
        record.pop("reasoning_content", None)  # many endpoints refuse thoughts that come back
        for call in record.get("tool_calls", ()):
            call["id"] = call["id"] or f"call_{len(result)}_{len(open_ids)}"
            open_ids.append(call["id"])
        if message.role == "tool":
            record = answer_of(record["tool_call_id"] if message.tool_call_id else open_ids.pop(0), message)
        result.append(record)
    return result


def answer_of(identity: str, message: Message) -> dict[str, Any]:
    """The answer to the call of that id. Without the tool's name, which strict servers refuse."""
    return {"role": "tool", "tool_call_id": identity, "content": message.content}


def _attempt(value: Any) -> ToolCall | ParseError:
    function = value.get("function") if isinstance(value, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        return ParseError("missing_name", 'the call has no "name"')
    given = function.get("arguments")
    try:
        return ToolCall(name, decode_arguments("" if given is None else given))
    except Malformed as error:
        return ParseError(error.kind, error.detail)


def _numbered(calls: Sequence[Any], attempts: Sequence[ToolCall | ParseError]) -> list[dict[str, Any]]:
    """The calls as they go back: with ids that differ, and arguments that are JSON, since servers read them.

    What could not be read goes back as text under `unreadable`, so that the model sees what it wrote.
    """
    result: list[dict[str, Any]] = []
    taken: set[str] = set()
    for number, (call, attempt) in enumerate(zip(calls, attempts, strict=True)):
        identity = call.get("id") if isinstance(call, Mapping) else None
        if not isinstance(identity, str) or not identity or identity in taken:
            identity = f"call_{number}"
            while identity in taken:
                identity += "x"
        taken.add(identity)
        function = call.get("function") if isinstance(call, Mapping) else None
        told = function if isinstance(function, Mapping) else {}
        name = ODD.sub("_", str(told.get("name") or "unnamed"))[:64]
        unreadable = {"unreadable": told.get("arguments")}
        text = json.dumps(attempt.arguments if isinstance(attempt, ToolCall) else unreadable)
        result.append({"id": identity, "type": "function", "function": {"name": name, "arguments": text}})
    return result


def _text(value: Any) -> str:
    """Text, or the text of a list of parts; nothing where there is none."""
    if isinstance(value, list):
        parts = [part.get("text") for part in value if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return value if isinstance(value, str) else ""


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
