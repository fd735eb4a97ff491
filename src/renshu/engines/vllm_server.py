"""What is said between the vLLM engine and the server: requests, answers, and which log-probs those hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from renshu.engines.protocol import Sampling
from renshu.errors import ConfigError, EngineError

Mode = Literal["raw", "processed"]
TOKEN = "token_id:"


@dataclass(frozen=True)
class Turn:
    """A sampled turn. stopped: by a stop token. cached: tokens of the prompt; None: not told. top:
    log-probs of the likeliest first tokens, by id, where they were asked for.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    prompt: tuple[int, ...]
    stopped: bool
    cached: int | None
    top: Mapping[int, float]


def completion(
    model: str, prompt: Sequence[int], sampling: Sampling, max_tokens: int, seed: int
) -> dict[str, Any]:
    """The body of a request. Every sampling value is told, so that none comes from the server's defaults.

    `ignore_eos` with `stop_token_ids`: our stop tokens end a turn and belong to it, and no others do.
    """
    greedy = sampling.temperature == 0
    return {
        "model": model,
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": 1.0 if greedy else sampling.top_p,
        "top_k": 0 if greedy else sampling.top_k,
        "min_p": 0.0 if greedy else sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": seed,
        "stop_token_ids": sorted(sampling.stop_ids),
        "ignore_eos": True,
        "n": 1,
        "logprobs": 0,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "add_special_tokens": False,
    }


def read_turn(body: Any) -> Turn:
    """A completion. Raises ValueError if it is none, EngineError if the server is too old to tell ids."""
    choice = _at(_at(body, "choices", list), 0, dict)
    told = _at(choice, "logprobs", dict)
    logprobs = tuple(float(value) for value in _at(told, "token_logprobs", list))
    if choice.get("token_ids") is None or choice.get("prompt_token_ids") is None:
        raise EngineError("the server tells no token ids (return_token_ids): take vLLM 0.10.2 or later")
    ids, prompt = tuple(choice["token_ids"]), tuple(choice["prompt_token_ids"])
    if len(ids) != len(logprobs):
        raise ValueError(f"{len(ids)} token ids but {len(logprobs)} log-probs")
    finish = choice.get("finish_reason")
    if finish not in ("stop", "length"):
        raise ValueError(f"the turn was broken off: {finish}")
    details = (body.get("usage") or {}).get("prompt_tokens_details") or {}
    return Turn(ids, logprobs, prompt, finish == "stop", details.get("cached_tokens"), _top(told))


def read_card(body: Any) -> tuple[str, int | None]:
    """Name and context of the model that is served, without its adapters. Raises ValueError."""
    cards = _at(body, "data", list)
    card = next((card for card in cards if not card.get("parent")), None)
    if card is None:
        raise ValueError("it serves no model")
    return _at(card, "id", str), card.get("max_model_len")


def mode_of(warm: Mapping[int, float], cool: Mapping[int, float]) -> Mode:
    """By log-probs of one position at temperature 1 and 0.5. Raises EngineError if no mode gives these."""
    shared = sorted(warm.keys() & cool.keys(), key=lambda token: -warm[token])
    if len(shared) < 2 or warm[shared[0]] - warm[shared[-1]] < 1e-6:
        raise EngineError(
            "the server's log-probs of the likeliest tokens tell nothing: does it serve a model?"
        )
    first, last = shared[0], shared[-1]
    ratio = (cool[first] - cool[last]) / (warm[first] - warm[last])
    if abs(ratio - 1) < 0.1:
        return "raw"
    if abs(ratio - 2) < 0.2:
        return "processed"
    raise EngineError(
        f"the server's log-probs scale by {ratio:.2f} at temperature 0.5: neither raw nor processed"
    )


def require_exact(mode: Mode, sampling: Sampling) -> None:
    """Raise ConfigError where the server cannot tell temperature-scaled, untruncated log-probs.

    `raw` ones are those of temperature 1, whatever was sampled from; `processed` ones are scaled, and
    truncated by top-p, top-k and min-p. Greedy turns have those of temperature 1 in both.
    """
    filtered = bool(sampling.top_k or sampling.top_p < 1 or sampling.min_p)
    if sampling.temperature == 0 or (sampling.temperature == 1 and not filtered):
        return
    if mode == "raw" and sampling.temperature != 1:
        advice = "start it with --logprobs-mode processed_logprobs"
        advice += ", and turn top_p, top_k and min_p off" if filtered else ""
        raise ConfigError(
            f"the server tells log-probs of temperature 1, not {sampling.temperature:g}: {advice}"
        )
    if mode == "processed" and filtered:
        advice = "turn these off"
        if sampling.temperature == 1:
            advice += ", or start it with --logprobs-mode raw_logprobs"
        raise ConfigError(f"the server tells log-probs that top_p, top_k and min_p have bent: {advice}")


def _top(told: Mapping[str, Any]) -> dict[int, float]:
    positions = told.get("top_logprobs") or []
    first = positions[0] if positions else None
    return {int(token.removeprefix(TOKEN)): float(value) for token, value in (first or {}).items()}


def _at(value: Any, key: Any, kind: type) -> Any:
    try:
        found = value[key]
    except (KeyError, IndexError, TypeError):
        raise ValueError(f"it has no {key}") from None
    if not isinstance(found, kind):
        raise ValueError(f"{key} is no {kind.__name__}")
    return found
