"""The one store that every algorithm can learn from: trajectories as a run writes them, read back as groups.

A line holds what happened in messages, the score, and the paths of tokens with the fingerprint of the chat
format that made them. Where that is this model's own, the tokens are taken exactly as they were sampled; else
the messages are rendered anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from renshu.chat import ChatFormat
from renshu.data.dialogues import read_message, read_schemas, reasons
from renshu.errors import DataError, TemplateError
from renshu.jsonl import parse_json, user_lines
from renshu.types import Group, Row, Score, Scored, Segment, Stop, Task, Trajectory, Unscored

FOLDER = "trajectories"  # of a run
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError)  # what a damaged line raises
SHOWN = "samples.jsonl"  # a few with text, for people; not a part of the store


@dataclass(frozen=True)
class Stored:
    """groups: the rollouts of one task in one file, that is, in one step. set_aside: damaged lines, by
    reason. exact, rendered: trajectories with the tokens that were sampled, and those rendered anew.
    """

    groups: tuple[Group, ...]
    set_aside: Mapping[str, int]
    exact: int
    rendered: int

    @property
    def notes(self) -> list[str]:
        """Sentences about what a user should know."""
        found = []
        if self.rendered:
            found.append(
                f"{self.rendered} of {self.exact + self.rendered} trajectories were rendered anew from their "
                "messages, as their tokens are of another model or chat format"
            )
        if self.set_aside:
            found.append(f"lines set aside ({reasons(self.set_aside)})")
        return found


def read_groups(
    path: Path,
    stage: str | None = None,
    steps: Collection[int] | None = None,
    *,
    chat: ChatFormat,
    tools: Sequence[Mapping[str, Any]] = (),
) -> Stored:
    """The trajectories of a run folder, of any folder of such files, or of one file.

    stage, steps: only those of a stage of the run, of certain steps. tools: schemas that the agent had, for
    dialogues rendered anew that do not bring their own. A line with `label: true` or `false` is a thumb by
    hand: it is taken for its success. Raises DataError if no line can be read.
    """
    groups: list[Group] = []
    set_aside: Counter[str] = Counter()
    exact = rendered = 0
    files = trajectory_files(path, stage, steps)
    for file in files:
        found: dict[str, list[Trajectory]] = {}
        for number, line in enumerate(user_lines(file), start=1):
            try:
                record = _record(line)
                own = record.get("template") == chat.fingerprint
                paths = _paths(record, len(chat.tokenizer)) if own else _rendered(record, chat, tools)
                trajectory = _trajectory(record, paths, f"{file.name}/{number}")
            except (*UNREADABLE, DataError, TemplateError) as error:
                set_aside[f"no key {error}" if isinstance(error, KeyError) else str(error)] += 1
                continue
            exact, rendered = exact + own, rendered + (not own)
            found.setdefault(trajectory.task.id, []).append(trajectory)
        groups += [Group(members[0].task, tuple(members)) for members in found.values()]
    if not groups:
        why = reasons(set_aside) or ("the files are empty" if files else "there is no such file in it")
        raise DataError(f"{path}{f':{stage}' if stage else ''} holds no trajectories ({why})")
    return Stored(tuple(groups), set_aside, exact, rendered)


def trajectory_files(
    path: Path, stage: str | None = None, steps: Collection[int] | None = None
) -> list[Path]:
    """The files that `read_groups` reads, in order."""
    if path.is_file():
        return [path]
    folder = path / FOLDER if (path / FOLDER).is_dir() else path
    if stage is not None:
        folder = folder / stage
    files = sorted(file for file in folder.rglob("*.jsonl") if file.name != SHOWN)
    return files if steps is None else [file for file in files if _step(file) in steps]


def _step(file: Path) -> int | None:
    number = file.stem.removeprefix("step-")
    return int(number) if number.isdecimal() else None


def _record(line: str) -> dict[str, Any]:
    record = parse_json(line)
    if not isinstance(record, dict) or not isinstance(record.get("messages"), list):
        raise ValueError("no object with a list of messages")
    return record


def _trajectory(record: Mapping[str, Any], paths: Sequence[Sequence[Segment]], place: str) -> Trajectory:
    *forks, segments = [tuple(path) for path in paths]
    return Trajectory(
        task=Task(str(record.get("task") or place)),
        segments=segments,
        messages=tuple(read_message(message) for message in record["messages"]),
        stop=Stop(record.get("stop") or Stop.ANSWERED),
        score=_score(record),
        forks=tuple(forks),
    )


def _score(record: Mapping[str, Any]) -> Score:
    """Raises ValueError for what is no score."""
    reward, success, label = record.get("reward"), record.get("success"), record.get("label")
    for name, value in (("success", success), ("label", label)):
        if value is not None and not isinstance(value, bool):
            raise ValueError(f"{name} that is not true or false")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise ValueError("reward that is no number")
    truth = success if label is None else label
    if reward is None and label is None:
        return Unscored(str(record.get("reason") or "unscored: no reward in the file"))
    return Scored(float(label or 0) if reward is None else float(reward), success=truth)


def _paths(record: Mapping[str, Any], vocabulary: int) -> list[list[Segment]]:
    """The paths of tokens as they were written. Raises ValueError, TypeError or KeyError for damaged ones."""
    paths = [[_segment(segment, vocabulary) for segment in path] for path in record["paths"]]
    if not paths or not any(segment.sampled for path in paths for segment in path):
        raise ValueError("paths without a sampled token")
    return paths


def _segment(record: Mapping[str, Any], vocabulary: int) -> Segment:
    ids, sampled, logprobs = record["ids"], record["sampled"], record.get("logprobs")
    if not all(type(token) is int and 0 <= token < vocabulary for token in ids):
        raise ValueError("ids that are no tokens of the model")
    return Segment(tuple(ids), bool(sampled), None if logprobs is None else tuple(map(float, logprobs)))


def _rendered(
    record: Mapping[str, Any], chat: ChatFormat, tools: Sequence[Mapping[str, Any]]
) -> list[list[Segment]]:
    messages = [read_message(message) for message in record["messages"]]
    schemas = read_schemas(record["tools"]) if "tools" in record else tools
    return [segments_of(row) for row in chat.supervised_rows(messages, schemas)]


def segments_of(row: Row) -> list[Segment]:
    """A row cut where tokens that were sampled and others meet."""
    runs = groupby(zip(row.ids, row.trained, strict=True), key=lambda token: token[1])
    return [Segment(tuple(token for token, _ in run), sampled=sampled) for sampled, run in runs]
