"""Trajectories as JSON: what the run folder and the evaluation files hold."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from renshu.types import Message, Scored, Segment, Trajectory


def outcome_record(trajectory: Trajectory) -> dict[str, Any]:
    """What happened, in messages; of tokens only how many."""
    score = trajectory.score
    return {
        "task": trajectory.task.id,
        "success": score.success if isinstance(score, Scored) else None,
        "reward": score.value if isinstance(score, Scored) else None,
        "parts": dict(score.parts) if isinstance(score, Scored) else {},
        **({"steps": dict(score.steps)} if isinstance(score, Scored) and score.steps else {}),
        "reason": "" if isinstance(score, Scored) else score.reason,
        "stop": str(trajectory.stop),
        "counts": dict(trajectory.counts),
        "tokens": {"prompt": prompt_tokens(trajectory), "sampled": trajectory.sampled_tokens},
        "messages": [message_record(message) for message in trajectory.messages],
    }


def prompt_tokens(trajectory: Trajectory) -> int:
    """Tokens that an API would have been sent: at every turn the whole dialogue before it."""
    total = 0
    for path in trajectory.paths:
        before = 0
        for segment in path:
            total += before if segment.sampled else 0
            before += len(segment.ids)
    return total


def final_answer(record: Mapping[str, Any]) -> str | None:
    """What the agent said last, by its `outcome_record`; None if the episode was cut before its end."""
    if record["stop"] not in ("answered", "env_done"):
        return None
    said = [message for message in record["messages"] if message["role"] == "assistant"]
    if not said:
        return None
    calls = said[-1].get("tool_calls", [])
    spelled = [json.dumps(call, ensure_ascii=False, sort_keys=True, default=str) for call in calls]
    return " ".join([str(said[-1]["content"]).strip(), *spelled]).strip()


def trajectory_record(trajectory: Trajectory) -> dict[str, Any]:
    """The outcome and all tokens, exactly as read and sampled."""
    paths = [[_segment(segment) for segment in path] for path in trajectory.paths]
    return {**outcome_record(trajectory), "paths": paths}


def message_record(message: Message) -> dict[str, Any]:
    """A message in OpenAI's shape; keys that say nothing are left out."""
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        record["reasoning"] = message.reasoning
    if message.tool_calls:
        record["tool_calls"] = [
            {"name": call.name, "arguments": call.arguments} for call in message.tool_calls
        ]
    if message.name is not None:
        record["name"] = message.name
    return record


def _segment(segment: Segment) -> dict[str, Any]:
    record: dict[str, Any] = {"ids": list(segment.ids), "sampled": segment.sampled}
    if segment.logprobs is not None:
        record["logprobs"] = [round(value, 6) for value in segment.logprobs]
    return record
