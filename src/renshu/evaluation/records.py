"""Trajectories as JSON: what the run folder and the evaluation files hold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from renshu.errors import DataError
from renshu.types import Message, Scored, Segment, Trajectory


def outcome_record(trajectory: Trajectory) -> dict[str, Any]:
    """What happened, in messages; of tokens only how many."""
    score = trajectory.score
    return {
        "task": trajectory.task.id,
        "success": score.success if isinstance(score, Scored) else None,
        "reward": score.value if isinstance(score, Scored) else None,
        "parts": dict(score.parts) if isinstance(score, Scored) else {},
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


def append_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Append one JSON line an episode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(record, ensure_ascii=False, default=str) + "\n" for record in records]
    with path.open("ab") as file:  # half a surrogate pair is written as JSON escapes it
        file.write("".join(lines).encode("utf-8", "backslashreplace"))


def read_records(path: Path) -> list[dict[str, Any]]:
    """The lines of an evaluation file, none if there is no file. Raises DataError.

    A last line that was broken off is left out: its writer was stopped.
    """
    text = path.read_text("utf-8") if path.is_file() else ""
    *whole, _torn = text.split("\n")  # not `splitlines`: a text may hold U+2028, which JSON leaves as it is
    records = []
    for number, line in enumerate(whole, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise DataError(f"{path} is damaged at line {number}: {error}") from None
        if not isinstance(record, dict):
            raise DataError(f"{path} is damaged at line {number}: expected an object")
        records.append(record)
    return records


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
