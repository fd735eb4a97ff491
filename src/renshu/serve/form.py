"""Answers in OpenAI's form: a body, or the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any
from uuid import uuid4

from renshu.chat import ChatFormat
from renshu.chat.wire import write_call, write_message
from renshu.serve.answer import Answer, Choice
from renshu.serve.turn import Delta


class Form:
    """The bodies of one answer: they share an id and a time."""

    def __init__(self, model: str, chat: ChatFormat, *, logprobs: bool) -> None:
        self.id = f"chatcmpl-{uuid4().hex}"
        self.chat, self.logprobs = chat, logprobs
        self._common = {"created": int(time.time()), "model": model, "system_fingerprint": chat.fingerprint}

    def body(self, answer: Answer) -> dict[str, Any]:
        """The whole answer."""
        choices = [
            {
                "index": number,
                "message": write_message(choice.message),
                "finish_reason": choice.finish,
                "logprobs": self._logprobs(choice.tokens),
            }
            for number, choice in enumerate(answer.choices)
        ]
        common = {"id": self.id, "object": "chat.completion", **self._common}
        return {**common, "choices": choices, "usage": usage(answer)}

    def opening(self, choices: int) -> Iterator[dict[str, Any]]:
        """The first chunk of every choice."""
        for number in range(choices):
            yield self._chunk(number, {"role": "assistant", "content": ""})

    def delta(self, delta: Delta) -> dict[str, Any]:
        """A chunk of thought or content."""
        if delta.reasoning:
            return self._chunk(delta.choice, {"reasoning_content": delta.reasoning})
        return self._chunk(delta.choice, {"content": delta.content}, tokens=delta.tokens)

    def closing(self, answer: Answer, *, with_usage: bool) -> Iterator[dict[str, Any]]:
        """The calls of every choice, why it ended, and at last the tokens used."""
        for number, choice in enumerate(answer.choices):
            yield from self._end(number, choice)
        if with_usage:
            yield {**self._chunk(0, {}), "choices": [], "usage": usage(answer)}

    def _end(self, number: int, choice: Choice) -> Iterator[dict[str, Any]]:
        for place, call in enumerate(choice.message.tool_calls):
            yield self._chunk(number, {"tool_calls": [{"index": place, **write_call(call)}]})
        yield self._chunk(number, {}, finish=choice.finish)

    def _chunk(
        self,
        number: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        tokens: Sequence[tuple[int, float]] = (),
    ) -> dict[str, Any]:
        logprobs = self._logprobs(tokens) if tokens else None
        choice = {"index": number, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return {"id": self.id, "object": "chat.completion.chunk", **self._common, "choices": [choice]}

    def _logprobs(self, tokens: Sequence[tuple[int, float]]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None
        return {"content": [self._token(token, logprob) for token, logprob in tokens]}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.chat.said([token]) or str(self.chat.tokenizer.convert_ids_to_tokens(token))
        whole = None if "\ufffd" in text else list(text.encode())  # a token may be a part of a character
        return {"token": text, "logprob": logprob, "bytes": whole, "top_logprobs": []}


def model_card(name: str) -> dict[str, Any]:
    """A model as `/v1/models` lists it."""
    return {"id": name, "object": "model", "created": 0, "owned_by": "renshu"}


def usage(answer: Answer) -> dict[str, int]:
    """Tokens of the prompt and of all choices."""
    prompt, completion = answer.prompt_tokens, answer.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
