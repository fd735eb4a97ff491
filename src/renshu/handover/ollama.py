"""A Modelfile for Ollama, its Go template derived from the chat template and compared with it.

No family of templates is known by name: what stands between the parts of a dialogue is found by rendering
dialogues of marks, and written as Go. Then other dialogues are rendered both ways; where they differ, there
is no Modelfile. Ollama spells the tools of a request in its own way (other blanks, other order), which the
model never saw: so the template holds the tools of training, and only looks whether a request has any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renshu.chat import ChatFormat
from renshu.errors import ModelError, TemplateError
from renshu.handover.go_template import render
from renshu.types import Message, ToolCall

Tools = Sequence[Mapping[str, Any]]
MOST_CONTEXT = 8192  # tokens that Ollama is told to keep memory for
SHOWN = 40  # characters of a difference

SYSTEM, USER, SAID, AGAIN, RESULT, NAME, KEY, VALUE = (f"zq-mark-{letter}" for letter in "abcdefgh")
_ASK, _SAY, _ASK_AGAIN = Message("user", USER), Message("assistant", SAID), Message("user", AGAIN)
_CALL, _ANSWER = ToolCall(NAME, {KEY: VALUE}), Message("tool", RESULT, name=NAME)

_ODD = 'two lines,\n"quoted" {{ .Tools }} 天気'
_LOOK = ToolCall("look_up", {"city": 'Oslo "N"'})
FIXED = (  # beside the environment's own dialogues
    (Message("user", _ODD),),
    (Message("system", _ODD), _ASK, Message("assistant", _ODD), Message("user", _ODD)),
)
FIXED_WITH_TOOLS = (
    (_ASK, Message("assistant", "", tool_calls=(_LOOK,)), Message("tool", _ODD, name="look_up")),
    (
        *(_ASK, Message("assistant", "I look.", tool_calls=(_LOOK, _LOOK))),
        *(Message("tool", "12", name="look_up"), Message("tool", "", name="look_up"), _SAY, _ASK_AGAIN),
        *(Message("assistant", "", tool_calls=(_LOOK,)), Message("tool", "7", name="look_up")),
    ),
)


@dataclass(frozen=True)
class Dialogues:
    """How training writes dialogues. adds_bos: whether the BOS token is put before every prompt anyway."""

    chat: ChatFormat
    adds_bos: bool

    def text(self, messages: Sequence[Message], tools: Tools) -> str:
        """The prompt of training as text, without a BOS token that is added anyway."""
        tokenizer = self.chat.tokenizer
        ids = self.chat.prompt(messages, tools)
        if self.adds_bos and ids[:1] == [tokenizer.bos_token_id]:
            ids = ids[1:]
        return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def around(self, tools: Tools, messages: Sequence[Message], *marks: str) -> list[str]:
        """What stands before, between and behind marks in a dialogue that holds them in this order."""
        rest = self.text(messages, tools)
        found = []
        for mark in marks:
            before, seen, rest = rest.partition(mark)
            if not seen:
                raise ModelError("the chat template does not write dialogues part by part: use --to gguf")
            found.append(before)
        return [*found, rest]


def modelfile(
    dialogues: Dialogues, tools: Tools, played: Sequence[Sequence[Message]], file: str, context: int
) -> str:
    """The Modelfile for a GGUF file that lies beside it. played: dialogues of the environment.

    Raises ModelError if the template cannot be said in Go, or says anything else on these or on fixed ones.
    """
    template = go_template(dialogues, tools)
    for messages in [*FIXED, *(FIXED_WITH_TOOLS if tools else ()), *played]:
        require_same(dialogues, template, messages, tools)
    for messages in FIXED:
        require_same(dialogues, template, messages, ())
    if '"""' in template:
        raise ModelError('the chat template holds """, which ends a TEMPLATE in a Modelfile: use --to gguf')
    stop = json.dumps(dialogues.chat.behaviour.turn_end, ensure_ascii=False)
    return (
        f'FROM ./{file}\nTEMPLATE """{template}"""\nPARAMETER stop {stop}\nPARAMETER temperature 0\n'
        f"PARAMETER repeat_penalty 1\nPARAMETER num_ctx {min(context, MOST_CONTEXT)}\n"
    )


def require_same(dialogues: Dialogues, template: str, messages: Sequence[Message], tools: Tools) -> None:
    """Raise ModelError if the Go template writes any prompt of a dialogue otherwise than training did."""
    for end in range(1, len(messages) + 1):
        answers = (
            messages[end].role == "assistant" if end < len(messages) else messages[-1].role != "assistant"
        )
        if not answers:
            continue
        wanted = dialogues.text(messages[:end], tools)
        try:
            found = render(template, request(messages[:end], tools))
        except TemplateError as error:
            raise ModelError(f"{error}; use --to gguf") from error
        if found != wanted:
            both = enumerate(zip(found, wanted, strict=False))
            at = next((n for n, (a, b) in both if a != b), min(len(found), len(wanted)))
            raise ModelError(
                f"Ollama's template would write {found[at : at + SHOWN]!r} where training wrote "
                f"{wanted[at : at + SHOWN]!r}; use --to gguf, which holds the template of training"
            )


def request(messages: Sequence[Message], tools: Tools) -> dict[str, Any]:
    """What Ollama gives to a template: neighbours of one role are joined, unless they are tools' answers."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        calls = [
            {"Function": {"Name": call.name, "Arguments": call.arguments}} for call in message.tool_calls
        ]
        if turns and turns[-1]["Role"] == message.role != "tool":
            turns[-1]["Content"] += "\n\n" + message.content
        else:
            turns.append({"Role": message.role, "Content": message.content, "ToolCalls": calls})
    system = "\n\n".join(message.content for message in messages if message.role == "system")
    return {"System": system, "Messages": turns, "Tools": list(tools)}


def go_template(dialogues: Dialogues, tools: Tools) -> str:
    """The chat template in Go; `$last` is what was written last. Raises ModelError where that cannot be."""
    _, to_said, to_user, ask = dialogues.around(tools, [_ASK, _SAY, _ASK_AGAIN], USER, SAID, AGAIN)
    if ask != to_said:
        raise ModelError("the chat template asks for a turn otherwise than it writes one: use --to gguf")
    opening = _opening(dialogues, ())
    if tools:
        opening = _either("$.Tools", _opening(dialogues, tools), opening)
    user = _case("$last", {"": opening, "said": _text(to_user)}) + "{{ .Content }}" + '{{ $last = "user" }}'
    before, said, answer = {"user": _text(to_said)}, "", ""
    if tools:
        calls = _calls(dialogues, tools, to_said)
        before["tool"] = _text(calls.after_result)
        said = calls.written(_arguments(tools))
        answer = _case("$last", {"calls": _text(calls.to_result), "tool": _text(calls.to_next_result)})
        answer += ("{{ json .Content }}" if calls.quoted else "{{ .Content }}") + '{{ $last = "tool" }}'
    said = _case("$last", before) + '{{ .Content }}{{ $last = "said" }}' + said
    turns = _case(".Role", {"user": user, "assistant": said, "tool": answer})
    return '{{ $last := "" }}{{ range .Messages }}' + turns + "{{ end }}" + _case("$last", before)


def _opening(dialogues: Dialogues, tools: Tools) -> str:
    """What stands before the first user message, with a system message or without."""
    before, after, _ = dialogues.around(tools, [Message("system", SYSTEM), _ASK], SYSTEM, USER)
    without, _ = dialogues.around(tools, [_ASK], USER)
    return _either("$.System", _text(before) + "{{ $.System }}" + _text(after), _text(without))


@dataclass(frozen=True)
class _Calls:
    """What stands before, in and behind calls and the answers of tools. quoted: answers are JSON."""

    alone: str
    beside_text: str
    to_arguments: str
    to_next: str
    to_result: str
    to_next_result: str
    after_result: str
    quoted: bool

    def written(self, arguments: str) -> str:
        first = _either("$content", _text(self.beside_text), _text(self.alone))
        lead = '{{ if eq $last "calls" }}' + _text(self.to_next) + "{{ else }}" + first + "{{ end }}"
        call = lead + '{{ $last = "calls" }}{{ .Function.Name }}' + _text(self.to_arguments) + arguments
        return "{{ $content := .Content }}{{ range .ToolCalls }}" + call + "{{ end }}"


def _calls(dialogues: Dialogues, tools: Tools, to_said: str) -> _Calls:
    key, value = json.dumps(KEY), json.dumps(VALUE)
    alone = Message("assistant", "", tool_calls=(_CALL,))
    _, lead, to_arguments, colon, to_result, after = dialogues.around(
        tools, [_ASK, alone, _ANSWER], USER, NAME, key, value, RESULT
    )
    two = Message("assistant", SAID, tool_calls=(_CALL, _CALL))
    marks = (SAID, NAME, value, NAME, value, RESULT, RESULT)
    around = dialogues.around(tools, [_ASK, two, _ANSWER, _ANSWER], *marks)
    if colon != ": " or not lead.startswith(to_said):
        raise ModelError("the chat template does not write calls as JSON behind a header: use --to gguf")
    quoted = to_result.endswith('"') and after.startswith('"')
    cut = (lambda text: text.removeprefix('"').removesuffix('"')) if quoted else str
    return _Calls(
        alone=lead.removeprefix(to_said),
        beside_text=around[1],
        to_arguments=to_arguments,
        to_next=around[3],
        to_result=cut(to_result),
        to_next_result=cut(around[6]),
        after_result=cut(after),
        quoted=quoted,
    )


def _arguments(tools: Tools) -> str:
    """Arguments as Python's `json.dumps` writes them. Go has them by key; known tools say their own order."""
    written = '{{ $comma := "" }}{{ $known := "" }}'
    for tool in tools:
        schema = tool.get("function", tool)
        properties = schema["parameters"].get("properties", {})
        one = "".join(
            "{{ range $key, $value := .Function.Arguments }}{{ if eq $key "
            + f"{json.dumps(name)} }}}}"
            + _pair(_list() if kind.get("type") == "array" else "{{ json $value }}")
            + "{{ end }}{{ end }}"
            for name, kind in properties.items()
        )
        name = json.dumps(schema["name"])
        written += f'{{{{ if eq .Function.Name {name} }}}}{{{{ $known = "yes" }}}}{one}{{{{ end }}}}'
    other = "{{ range $key, $value := .Function.Arguments }}" + _pair("{{ json $value }}") + "{{ end }}"
    return written + '{{ if eq $known "" }}' + other + "{{ end }}"


def _pair(value: str) -> str:
    return "{{ $comma }}{{ json $key }}: " + value + '{{ $comma = ", " }}'


def _list() -> str:
    entry = '{{ $gap }}{{ json . }}{{ $gap = ", " }}'
    return '[{{ $gap := "" }}{{ range $value }}' + entry + "{{ end }}]"


def _either(condition: str, then: str, otherwise: str) -> str:
    return f"{{{{ if {condition} }}}}{then}{{{{ else }}}}{otherwise}{{{{ end }}}}"


def _case(subject: str, cases: Mapping[str, str]) -> str:
    """The text of the case that `subject` is."""
    return "".join(
        f'{{{{ if eq {subject} "{case}" }}}}{text}{{{{ end }}}}' for case, text in cases.items() if text
    )


def _text(literal: str) -> str:
    """Text as it stands, also where it would open an action, alone or with what follows."""
    return re.sub(r"\{\{+|\{$", lambda match: f'{{{{ "{match[0]}" }}}}', literal)
