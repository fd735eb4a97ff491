"""One object per model that knows how dialogues become tokens, and tokens replies. Training, rollout,
evaluation and serving all use it, so that they cannot differ.

Tokens are the truth: in an episode, what the model sampled is kept as it is, and only the text of others is
encoded and appended. A supervised row is built in just the same way, as an episode whose samples are given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from typing import Any, Literal

from renshu.chat.behaviour import Behaviour, header_of, observe
from renshu.chat.encode import Encoder, unguard
from renshu.chat.jinja import PINNED_DATE, JinjaTemplate
from renshu.chat.parse import THINK, UNTHINK, parse_reply, settled_content
from renshu.chat.render import Renderer, Tool
from renshu.chat.reply import Reply
from renshu.chat.templates import choose
from renshu.errors import DataError, TemplateError
from renshu.types import Message, Row, Segment, ToolCall, row_of

Thoughts = Literal["append", "fork", "strip"]


@dataclass(frozen=True)
class Advance:
    """What follows a sampled turn. `ids` are appended to the path; if `fresh`, they are a whole new path
    instead.
    """

    ids: list[int]
    fresh: bool = False


class ChatFormat:
    """Messages ↔ tokens of one model.

    tokenizer: a transformers tokenizer. template: None for its own, "fallback", or a Jinja template as text.
    thoughts: what becomes of thoughts of earlier turns.
        "append": they stay, also where the template would drop them: one path an episode, never rendered
        again. "fork": as the template says; where it rewrites history, the path ends and a new one begins.
        "strip": they are removed as soon as the turn is over, in rollout and in training alike.
    eos_ids: the end tokens of the checkpoint's generation config; they stop generation beside the
    template's own. today: the date that a template with a clock sees; fixed, so that training and
    evaluation see the same prompt.

    Raises TemplateError if there is no template, or if it gives the model no token to end its turn with.
    """

    def __init__(
        self,
        tokenizer: Any,
        template: str | None = None,
        thoughts: Thoughts = "append",
        *,
        eos_ids: Iterable[int] = (),
        today: date = PINNED_DATE,
    ) -> None:
        given = {key: text for key, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
        named = {"bos_token": "", "eos_token": "", **given}
        stops = {*eos_ids} | ({tokenizer.eos_token_id} if tokenizer.eos_token_id is not None else set())
        self.tokenizer = tokenizer
        self.thoughts = thoughts
        self.template = JinjaTemplate(choose(tokenizer, template), named, today)
        self._encoder = Encoder(tokenizer, tokenizer.convert_ids_to_tokens(sorted(stops)))
        self.behaviour: Behaviour = observe(self.template, self._encoder.control)
        self._renderer = Renderer(self.behaviour, self._encoder)
        self._turn_end_id = int(tokenizer.convert_tokens_to_ids(self.behaviour.turn_end))
        self.stop_ids: frozenset[int] = frozenset({self._turn_end_id, *stops})

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        """The ids up to and including the assistant's header. Earlier thoughts are treated as `thoughts`
        says.
        """
        turn = _last_turn(messages)
        if self.thoughts == "append" and turn is not None:  # as an episode would have come here
            path = self._paths(messages[: turn + 1], tools)[-1]
            after = self.continuation(messages[: turn + 1], messages[turn + 1 :], tools)
            return [*(token for segment in path for token in segment.ids), *after]
        return self._encoder.encode(self._text(self._history(messages), tools, prompt=True))

    def continuation(
        self, before: Sequence[Message], new: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> list[int]:
        """The foreign ids that follow a sampled turn which ended in its stop token: the rest of that turn's
        end, the new messages, the next header. `before` ends with that turn.

        Raises TemplateError if rendering `new` changes anything of `before` but its thoughts.
        """
        earlier = self._turns(before, tools)[:-1]
        later = self._turns([*before, *new], tools, prompt=True)
        same = (_thoughtless(old) == _thoughtless(now) for old, now in zip(earlier, later, strict=False))
        if len(later) <= len(earlier) or not all(same):
            raise TemplateError(
                "The chat template rewrites history: the dialogue before the new message is rendered "
                "differently once it follows, so tokens already sampled would not be a prefix of the next "
                "prompt. Use template='fallback'."
            )
        return self._behind(later[len(earlier) :])

    def advance(
        self,
        path: Sequence[int],
        before: Sequence[Message],
        new: Sequence[Message],
        tools: Sequence[Tool] | None = None,
    ) -> Advance:
        """What follows a sampled turn under the policy `thoughts`. `path`: every id so far, the stop token
        included.

        Under "fork" and "strip" the path goes on only if the new prompt begins with the text of the path,
        or with the template's own rendering of it (so a model's odd spacing in a call does not fork).
        """
        if self.thoughts == "append":
            return Advance(self.continuation(before, new, tools))
        earlier = self._turns([*self._history(before[:-1]), before[-1]], tools)[:-1]
        later = self._turns(self._history([*before, *new]), tools, prompt=True)
        end = self.behaviour.turn_end
        kept = later[: len(earlier)]
        if kept == earlier or unguard(end.join([*kept, ""])) == self._decode(path):
            return Advance(self._behind(later[len(earlier) :]))
        return Advance(self._encoder.encode(end.join(later)), fresh=True)

    def supervised(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> Row:
        """The dialogue as one row; trained: each assistant turn's body and its stop token, never its header.

        Raises DataError without an assistant turn, TemplateError if the policy makes several paths of the
        dialogue (then use `supervised_rows`).
        """
        rows = self.supervised_rows(messages, tools)
        if len(rows) > 1:
            raise TemplateError(
                f"Under thoughts={self.thoughts!r} this dialogue is {len(rows)} paths, not one; "
                "use supervised_rows."
            )
        return rows[0]

    def supervised_rows(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None
    ) -> tuple[Row, ...]:
        """One row for each path that an episode with these messages would have had; each turn is trained
        once.
        """
        if _last_turn(messages) is None:
            raise DataError("The dialogue has no assistant message, so there is nothing to train on.")
        return tuple(row_of(path) for path in self._paths(messages, tools))

    def parse(self, reply: Sequence[int] | str, *, thought_open: bool | None = None) -> Reply:
        """Read a sampled turn, as ids or text, with or without its stop token.

        thought_open: whether the prompt ended in `<think>`; None: as the template's prompts do.
        """
        text = reply.removesuffix(self.behaviour.turn_end) if isinstance(reply, str) else self.said(reply)
        opened = self.behaviour.opens_thought if thought_open is None else thought_open
        return parse_reply(text, self.behaviour.dialect, thought_open=opened)

    def said(self, ids: Sequence[int]) -> str:
        """The text of a sampled turn, or of a part of one, without its stop token."""
        return self._decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids)

    def settled(self, text: str) -> str:
        """What of the content of a turn that is still being sampled is certain; see `settled_content`."""
        return settled_content(text, self.behaviour.dialect, thought_open=self.behaviour.opens_thought)

    def text(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None = None, *, prompt: bool = True
    ) -> str:
        """The dialogue as the template writes it, for people; ids are never made from this."""
        return unguard(self._text(self._history(messages), tools, prompt=prompt))

    def dialogue(self, messages: Sequence[Message], tools: Sequence[Tool] | None = None) -> list[int]:
        """The ids of a whole dialogue just as the template writes it, without a header behind it: what a
        reward model reads.
        """
        return self._encoder.encode(self._text(self._history(messages), tools, prompt=False))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the template and of the ids of fixed dialogues: equal exactly where training and use
        agree.
        """
        call = ToolCall("look_up", {"city": "Oslo", "days": 2})
        tool = {
            "name": "look_up",
            "description": "Look up.",
            "parameters": {"type": "object", "properties": {}},
        }
        asked = [Message("system", "Be brief."), Message("user", "Weather? 天気 <|im_end|>")]
        called = Message("assistant", reasoning="I look.", tool_calls=(call,))
        dialogue = [
            *asked,
            called,
            Message("tool", "12", name="look_up"),
            Message("assistant", "12 degrees."),
        ]
        seen = (
            self.template,
            self.thoughts,
            sorted(self.stop_ids),
            self.prompt(asked[1:]),
            self.prompt(asked, [tool]),
            self.supervised_rows(dialogue, [tool]),
        )
        return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]

    def _paths(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[list[Segment]]:
        """The paths of an episode in which the model says just what `messages` say."""
        turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
        path = [Segment(tuple(self.prompt(messages[: turns[0]], tools)))]
        paths = [path]
        for turn, after in zip(turns, [*turns[1:], None], strict=True):
            path.append(Segment(tuple(self._body(messages[: turn + 1], tools)), sampled=True))
            if after is not None:
                ids = [token for segment in path for token in segment.ids]
                step = self.advance(ids, messages[: turn + 1], messages[turn + 1 : after], tools)
                if step.fresh:
                    path = []
                    paths.append(path)
                path.append(Segment(tuple(step.ids)))
        return paths

    def _body(self, messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[int]:
        """The ids of the last message, an assistant's, as the model would have sampled them behind its
        prompt.
        """
        history = self._history(messages[:-1])
        header = self._turns(history, tools, prompt=True)[-1]
        said = self._turns([*history, messages[-1]], tools)[-2]
        if said.startswith(header):
            body = said[len(header) :]
        elif said.startswith(
            header_of(header)
        ):  # the prompt opens a thought which the template then leaves out
            thought = self._encoder.guard(messages[-1].reasoning or "").strip()
            rest = _thoughtless(said[len(header_of(header)) :]).lstrip("\n")
            body = f"{thought}\n{UNTHINK}\n\n{rest}"
        else:
            raise TemplateError(
                f"The chat template's prompt ends in {unguard(header)[-40:]!r}, but the assistant's turn "
                f"begins {unguard(said)[:40]!r}: what is trained would not be what is asked for. "
                "Use template='fallback'."
            )
        end = self.behaviour.turn_end
        return self._encoder.encode_behind(end + header, body + end)

    def _turns(
        self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, prompt: bool = False
    ) -> list[str]:
        """The rendered dialogue, cut at (and without) the tokens that end turns; last, what is behind the
        last.
        """
        return self._text(messages, tools, prompt=prompt).split(self.behaviour.turn_end)

    def _behind(self, turns: Sequence[str]) -> list[int]:
        """The ids of turns that follow an end of turn which is already there."""
        end = self.behaviour.turn_end
        return self._encoder.encode(end + end.join(turns))[1:]

    def _text(self, messages: Sequence[Message], tools: Sequence[Tool] | None, *, prompt: bool) -> str:
        given = tools or ()
        return self.template.render(
            self._renderer.messages(messages, given), self._renderer.native(given), prompt=prompt
        )

    def _history(self, messages: Sequence[Message]) -> list[Message]:
        """The messages before a turn, without their thoughts if the policy strips them."""
        if self.thoughts != "strip":
            return list(messages)
        return [replace(message, reasoning=None) for message in messages]

    def _decode(self, ids: Sequence[int]) -> str:
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        )


def _last_turn(messages: Sequence[Message]) -> int | None:
    turns = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return turns[-1] if turns else None


def _thoughtless(text: str) -> str:
    """A rendered turn without its thoughts and the blank lines behind them."""
    kept: list[str] = []
    while (begin := text.find(THINK)) >= 0 and (end := text.find(UNTHINK, begin)) >= 0:
        kept.append(text[:begin])
        text = text[end + len(UNTHINK) :].lstrip("\n")
    return "".join([*kept, text])
