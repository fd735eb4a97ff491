"""Messages → what a chat template takes, so that nothing a message says is lost, doubled or misread.

What a template cannot say is written into the content: thoughts (as Qwen3 writes them), calls beside text
or in parallel, tools and their results (in Hermes' form, if the template ignores tools), a system prompt
that is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from renshu.chat.behaviour import Behaviour
from renshu.chat.encode import Encoder
from renshu.chat.parse import THINK, UNTHINK
from renshu.types import Message, ToolCall

Tool = Mapping[str, Any]

_TOOLS = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n"
    "<tools>\n{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:"
    '\n<tool_call>\n{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)


@dataclass(frozen=True)
class Renderer:
    """Turns messages into template messages, as `behaviour` demands; all texts are guarded by `encoder`."""

    behaviour: Behaviour
    encoder: Encoder

    def messages(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
        """Template messages, in order. Raises nothing: what cannot be said natively is written into the
        content.
        """
        system = [self.encoder.guard(m.content) for m in messages[:1] if m.role == "system"]
        rest = messages[len(system) :]
        if tools and self.behaviour.tools == "prompt":
            shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.tools(tools))
            system = ["\n\n".join([*filter(None, system), _TOOLS.format(tools=shown)])]
        turns = self._merge([self._message(message) for message in rest])
        if system and self.behaviour.system == "fold":
            return _fold(system[0], turns)
        return [*({"role": "system", "content": text} for text in system), *turns]

    def tools(self, tools: Sequence[Tool]) -> list[Any]:
        """Tool schemas in OpenAI's form, guarded; a bare function schema is wrapped."""
        wrapped = [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]
        return _guarded(self.encoder, json.dumps(wrapped))

    def native(self, tools: Sequence[Tool]) -> list[Any] | None:
        """What the template gets as `tools`: None if it ignores them."""
        return self.tools(tools) if self.behaviour.tools == "native" else None

    def _message(self, message: Message) -> dict[str, Any]:
        if message.role == "assistant":
            return self._assistant(message)
        content = self.encoder.guard(message.content)
        if message.role != "tool":
            return {"role": message.role, "content": content}
        if self.behaviour.tools == "prompt":
            return {
                "role": "user",
                "content": f"<tool_response>\n{content}\n</tool_response>",
                "result": True,
            }
        extras = {"tool_call_id": message.tool_call_id, "name": message.name}
        return {"role": "tool", "content": content, **{key: value for key, value in extras.items() if value}}

    def _assistant(self, message: Message) -> dict[str, Any]:
        """An assistant turn: natively as far as the template can, else written into the content."""
        content, field = self.encoder.guard(message.content), self.behaviour.reasoning_field
        thought = self.encoder.guard(message.reasoning or "").strip()
        calls = tuple(
            replace(call, arguments=self.encoder.guard_all(call.arguments)) for call in message.tool_calls
        )
        turn: dict[str, Any] = {"role": "assistant"}
        if thought and field:
            turn[field] = thought
        native = self._native_calls(calls, bool(content) or bool(thought and not field))
        if thought and not field:
            gap = self.behaviour.call_gap if native and not content else ""
            content = f"{THINK}\n{thought}\n{UNTHINK}" + "\n\n".removesuffix(gap) + content
        if native:
            turn["tool_calls"] = [self._call(call) for call in calls]
        elif calls:
            between = "\n" if message.content else ""
            content += between + self.behaviour.dialect.spell(calls, after_text=bool(message.content))
        turn["content"] = content or (self.behaviour.call_content if native else "")
        return turn

    def _native_calls(self, calls: Sequence[ToolCall], beside_text: bool) -> bool:
        able = self.behaviour.tools == "native" and (self.behaviour.parallel_calls or len(calls) == 1)
        return bool(calls) and able and (self.behaviour.text_beside_calls or not beside_text)

    def _call(self, call: ToolCall) -> dict[str, Any]:
        as_text = self.behaviour.arguments == "json"
        arguments = json.dumps(call.arguments, ensure_ascii=False) if as_text else call.arguments
        named = {
            "type": "function",
            "function": {"name": self.encoder.guard(call.name), "arguments": arguments},
        }
        return {**named, "id": call.id} if call.id else named

    def _merge(self, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Join results of one turn; join neighbours of one role where the template wants roles to
        alternate.
        """
        merged: list[dict[str, Any]] = []
        for turn in turns:
            result = turn.pop("result", False)
            last = merged[-1] if merged else {"role": ""}
            if result and last.get("result"):
                last["content"] += "\n" + turn["content"]
            elif self.behaviour.alternates and turn["role"] == last["role"] and "tool_calls" not in last:
                last["content"] += "\n\n" + turn["content"]
                last["result"] = result
            else:
                merged.append({**turn, "result": result})
        return [{key: value for key, value in turn.items() if key != "result"} for turn in merged]


@lru_cache(maxsize=256)
def _guarded(encoder: Encoder, schemas: str) -> list[Any]:
    """The guarded schemas of a JSON text: an episode shows the same ones in every turn."""
    guarded: list[Any] = encoder.guard_all(json.loads(schemas))
    return guarded


def _fold(system: str, turns: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the system text before the first user message, as its first paragraph."""
    first = next((index for index, turn in enumerate(turns) if turn["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system}, *turns]
    folded = {**turns[first], "content": f"{system}\n\n{turns[first]['content']}"}
    return [*turns[:first], folded, *turns[first + 1 :]]
