"""Pairs for a reward model: a preferred and a rejected answer to one prompt, in TRL's format."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from renshu.data.dialogues import read_message, read_schemas, reasons
from renshu.errors import ContextOverflow, DataError
from renshu.jsonl import parse_json, user_lines
from renshu.models.reward import RewardReader
from renshu.seeding import stable_hash
from renshu.types import Message


@dataclass(frozen=True)
class RewardPair:
    """Ids of two whole dialogues or texts; margin: by how much their scores should differ at least.

    prompt: what both begin with, as text, to tell which pairs belong together.
    """

    chosen: tuple[int, ...]
    rejected: tuple[int, ...]
    margin: float = 0.0
    prompt: str = ""


@dataclass(frozen=True)
class RewardPairs:
    """set_aside: lines that cannot be trained on, by reason."""

    items: Sequence[RewardPair]
    set_aside: Mapping[str, int]

    def split(self, share: float, seed: int) -> tuple[list[RewardPair], list[RewardPair]]:
        """Pairs to train on, and pairs that only measure: those of `share` of the prompts, at least of one.

        Pairs of one prompt stay together: an answer seen in training would look better than it is. Raises
        DataError if nothing is left to train on.
        """
        prompts = sorted({pair.prompt for pair in self.items}, key=lambda p: stable_hash(seed, "held out", p))
        held = set(prompts[: max(1, round(share * len(prompts)))] if share else ())
        training = [pair for pair in self.items if pair.prompt not in held]
        if not training:
            raise DataError(
                f"{len(prompts)} prompts are too few to hold any out: bring pairs of more, or set held_out=0"
            )
        return training, [pair for pair in self.items if pair.prompt in held]


def read_reward_pairs(path: Path, reader: RewardReader) -> RewardPairs:
    """Pairs `{"prompt": …, "chosen": …, "rejected": …}`, one a line, as texts or as lists of messages.

    Without `prompt`, both answers begin with it. `margin` and `tools` may be there. Set aside and counted:
    lines that cannot be read, empty or equal answers, and those longer than the reader's context. Raises
    DataError if no pair is left, TemplateError if there are messages and no chat template.
    """
    items = []
    set_aside: Counter[str] = Counter()
    for line in user_lines(path):
        try:
            items.append(_pair(parse_json(line), reader))
        except ContextOverflow:
            set_aside[f"longer than {reader.context} tokens"] += 1
        except (ValueError, TypeError, KeyError, AttributeError, DataError) as error:
            set_aside[f"no key {error}" if isinstance(error, KeyError) else str(error)] += 1
    if not items:
        why = reasons(set_aside) or "the file is empty"
        raise DataError(f"{path} holds no pair ({why}); expected `prompt`, `chosen` and `rejected` a line")
    return RewardPairs(items, set_aside)


def _pair(row: Any, reader: RewardReader) -> RewardPair:
    """Raises ValueError, KeyError, DataError or ContextOverflow for what cannot be trained on."""
    if not isinstance(row, dict):
        raise ValueError("no object")
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    margin = row.get("margin") or 0.0
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not math.isfinite(margin):
        raise ValueError("margin that is no number")
    kinds = {type(value) for value in (prompt, chosen, rejected) if value is not None}
    if kinds not in ({str}, {list}):
        raise ValueError("prompt, chosen and rejected that are not all texts, or all lists of messages")
    read = _text if kinds == {str} else _messages
    whole = [read(prompt, answer) for answer in (chosen, rejected)]
    ids = [tuple(reader.ids(one, read_schemas(row.get("tools")))) for one in whole]
    if ids[0] == ids[1]:
        raise ValueError("chosen and rejected are equal")
    if prompt is None:
        shared = [one for one, other in takewhile(_equal, zip(chosen, rejected, strict=False))]
        prompt = "".join(shared).rpartition("\n")[0] if kinds == {str} else shared
    return RewardPair(ids[0], ids[1], float(margin), json.dumps(prompt, sort_keys=True))


def _equal(both: tuple[Any, Any]) -> bool:
    return bool(both[0] == both[1])


def _text(prompt: str | None, answer: str) -> str:
    if not answer.strip():
        raise ValueError("an empty answer")
    return (prompt or "") + answer


def _messages(prompt: list[Any] | None, answer: list[Any]) -> list[Message]:
    messages = [read_message(message) for message in [*(prompt or []), *answer]]
    if not answer or not (messages[-1].content.strip() or messages[-1].tool_calls):
        raise ValueError("an empty answer")
    if messages[-1].role != "assistant":
        raise ValueError("an answer that does not end with the assistant")
    return messages
