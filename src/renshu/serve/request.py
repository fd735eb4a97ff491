"""The body of `/v1/chat/completions`, read strictly: what cannot be honoured is refused, never dropped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from pydantic import ConfigDict, Field

from renshu.chat.arguments import Malformed, decode_value
from renshu.chat.wire import read_messages, read_tools
from renshu.config import StrictModel
from renshu.engines import Sampling
from renshu.engines.protocol import COOLEST
from renshu.errors import ConfigError, DataError
from renshu.serve.refusals import Refusal
from renshu.types import Message

SAMPLED_BY = ("temperature", "top_p", "top_k", "min_p", "seed")
LONGEST = 500  # characters of a refusal: it may quote what the client sent


@dataclass(frozen=True)
class Defaults:
    """What a request that leaves it out gets. max_tokens: of one answer. temperature: 0 is greedy."""

    max_tokens: int = 512
    temperature: float = 0.0


class StreamOptions(StrictModel):
    model_config = ConfigDict(strict=True)
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Body(StrictModel):
    """The keys that OpenAI's clients send. Those in the last block change nothing here and are accepted."""

    model_config = ConfigDict(strict=True)
    model: str
    messages: list[Any]
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1_000_000)
    min_p: float | None = Field(None, ge=0, le=1)
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    seed: int | None = None
    n: int | None = Field(None, ge=1, le=16)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None


@dataclass(frozen=True)
class ChatRequest:
    """A request that can be answered.

    messages: as the client gave them, ids included. tools: as the prompt shows them. calls: whether the
    answer may call tools; single: at most one. stops: texts that end the answer and are no part of it.
    seed: None leaves it to chance. sampled_by: the settings of sampling that the request itself named.
    """

    model: str
    messages: Sequence[Message]
    tools: Sequence[dict[str, Any]]
    calls: bool
    single: bool
    sampling: Sampling
    stops: tuple[str, ...]
    seed: int | None
    choices: int
    logprobs: bool
    stream: bool
    usage: bool
    sampled_by: frozenset[str] = frozenset()


def read_request(body: bytes, model: str | None, defaults: Defaults, stop_ids: frozenset[int]) -> ChatRequest:
    """The request in a body. model: the only name that is served; None takes any.

    Raises Refusal: 400, or 404 for a model.
    """
    data = read_object(body)
    try:
        read = Body.from_dict(data, source="request")
    except ConfigError as error:
        _refuse(str(error))
    if model is not None and read.model != model:
        text = f"the model {read.model[:80]!r} does not exist here; this server has {model!r}"
        raise Refusal(404, text, code="model_not_found", param="model")
    _refuse_unsupported(read)
    try:
        messages, tools = read_messages(read.messages), read_tools(read.tools)
    except DataError as error:
        _refuse(str(error), param=str(error).split(":")[0].split("[")[0].split(".")[0])
    if read.tool_choice not in (None, "none", "auto"):
        _refuse(
            'tool_choice: "auto" and "none" are supported; the model cannot be made to call a tool '
            f"(got {read.tool_choice!r})",
            param="tool_choice",
        )
    allowed = bool(tools) and read.tool_choice != "none"
    return ChatRequest(
        model=read.model,
        messages=messages,
        tools=tools if allowed else [],
        calls=allowed,
        single=read.parallel_tool_calls is False,
        sampling=_sampling(read, defaults, stop_ids),
        stops=_stops(read.stop),
        seed=read.seed,
        choices=read.n or 1,
        logprobs=bool(read.logprobs),
        stream=bool(read.stream),
        usage=read.stream_options is not None and bool(read.stream_options.include_usage),
        sampled_by=frozenset(name for name in SAMPLED_BY if getattr(read, name) is not None),
    )


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises Refusal."""
    try:
        text = body.decode("utf-8")
        data, end = decode_value(text)
    except UnicodeDecodeError as error:
        _refuse(f"the body is not UTF-8: {error.reason} at byte {error.start}")
    except Malformed as error:
        _refuse(f"the body is not JSON: {error.detail}")
    if text[end:].strip():
        _refuse(f"the body is not JSON: there is more behind it: {text[end:].strip()[:40]!r}")
    if not isinstance(data, dict):
        _refuse("the body is not a JSON object")
    return data


def _refuse_unsupported(read: Body) -> None:
    """Refuse what would change the answer and cannot be done."""
    for key in ("frequency_penalty", "presence_penalty", "top_logprobs", "logit_bias"):
        if getattr(read, key):
            _refuse(f"{key} is not supported: leave it out", param=key)
    if read.response_format is not None and read.response_format.get("type") != "text":
        _refuse("response_format: only text is supported", param="response_format")
    if read.stream_options is not None and not read.stream:
        _refuse("stream_options: only with stream=true", param="stream_options")


def _sampling(read: Body, defaults: Defaults, stop_ids: frozenset[int]) -> Sampling:
    limit = read.max_completion_tokens or read.max_tokens or defaults.max_tokens
    temperature = defaults.temperature if read.temperature is None else read.temperature
    return Sampling(
        max_tokens=limit,
        temperature=temperature if temperature >= COOLEST else 0.0,
        top_p=read.top_p or 1.0,
        top_k=read.top_k or 0,
        min_p=read.min_p or 0.0,
        stop_ids=stop_ids,
    )


def _stops(value: str | list[str] | None) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(value or ())
    if len(stops) > 16 or not all(0 < len(stop) <= 1000 for stop in stops):
        _refuse("stop: expected up to 16 texts of 1 to 1000 characters", param="stop")
    return stops


def _refuse(text: str, param: str | None = None) -> NoReturn:
    shown = text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
    raise Refusal(400, shown, param=param)
