"""Measuring a model behind an endpoint. Every episode is written down as it ends: none is paid for twice."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from renshu.engines.openai_chat import ChatModel, written
from renshu.envs import Environment, Interaction
from renshu.envs.interaction import in_own_loop
from renshu.errors import DataError, InfrastructureError
from renshu.evaluation.benchmark import MakeEnvironment, Progress, Result
from renshu.evaluation.outcome import Outcome
from renshu.evaluation.records import outcome_record
from renshu.evaluation.samples import SampledResult, Tries
from renshu.jsonl import append_rows, read_rows
from renshu.rollout.dialogue import run_dialogue
from renshu.types import Task

Key = tuple[str, str, float, int]  # task, what it was asked (a hash), temperature, number of the try


class Kept:
    """Episodes on file. An episode that failed for the endpoint's sake is not among them: it is played again.

    Raises DataError if the file is damaged, but for a last line that was being written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._rows: dict[Key, dict[str, Any]] = {}
        for row in read_rows(path, ("task", "asked", "temperature", "number", "seconds")) if path else ():
            if not row.get("reason", "").startswith("infrastructure"):
                self._rows[(row["task"], row["asked"], float(row["temperature"]), row["number"])] = row
        if path is not None and path.is_file():
            _mend(path)

    def __contains__(self, key: Key) -> bool:
        return key in self._rows

    def __getitem__(self, key: Key) -> dict[str, Any]:
        return self._rows[key]

    def add(self, key: Key, record: dict[str, Any]) -> None:
        task, asked, temperature, number = key
        row = {**record, "task": task, "asked": asked, "temperature": temperature, "number": number}
        if self.path is not None:
            append_rows(self.path, [row])
        self._rows[key] = row


@dataclass(frozen=True)
class Measured:
    """What `evaluate_endpoint` found. known: how many of the episodes were on file already. rows: the greedy
    ones, as they are on file.
    """

    result: Result
    known: int
    rows: tuple[Mapping[str, Any], ...]


def evaluate_endpoint(
    model: ChatModel,
    make_env: MakeEnvironment,
    tasks: Sequence[Task],
    *,
    arm: str,
    max_tokens: int,
    tries: Tries | None = None,
    kept: Kept | None = None,
    progress: Progress | None = None,
) -> Measured:
    """One greedy episode for every task, and `tries` further ones, as `evaluate` plays them.

    Tokens are those that the server counted. seconds: wall clock in which the greedy episodes were played, in
    however many calls. Raises ConfigError, EngineError or ContractError; what was played is on file then.
    """
    player = _Player(model, make_env, kept or Kept(None), max_tokens)
    greedy, known = player.play(tasks, [0], 0.0, progress)
    seconds = sum(row["seconds"] for (row,) in greedy)
    sampled = None
    if tries is not None:
        tried, more = player.play(tasks, range(tries.k), tries.temperature, progress)
        sampled = SampledResult(tries, tuple(tuple(map(Outcome.of, row)) for row in tried))
        known += more
    rows = tuple(row for (row,) in greedy)
    return Measured(Result(arm, tuple(map(Outcome.of, rows)), sampled, seconds), known, rows)


def repeat_endpoint(
    model: ChatModel,
    make_env: MakeEnvironment,
    task: Task,
    *,
    times: int,
    temperature: float,
    max_tokens: int,
    kept: Kept,
    progress: Callable[[int], None],
) -> list[Outcome]:
    """One task, played `times` times."""
    player = _Player(model, make_env, kept, max_tokens)
    (rows,), _ = player.play([task], range(times), temperature, lambda done, _: progress(done))
    return list(map(Outcome.of, rows))


class _Player:
    def __init__(self, model: ChatModel, make_env: MakeEnvironment, kept: Kept, max_tokens: int) -> None:
        self.model, self.make_env, self.kept, self.max_tokens = model, make_env, kept, max_tokens

    def play(
        self, tasks: Sequence[Task], numbers: Sequence[int], temperature: float, progress: Progress | None
    ) -> tuple[list[list[dict[str, Any]]], int]:
        """The rows of every task, and how many of them were known."""
        asked = [_asked(self.make_env(), task) for task in tasks]
        wanted = [
            [(task.id, opening, float(temperature), number) for number in numbers]
            for task, opening in zip(tasks, asked, strict=True)
        ]
        left = [
            (task, key)
            for task, keys in zip(tasks, wanted, strict=True)
            for key in keys
            if key not in self.kept
        ]
        whole = sum(map(len, wanted))
        found = in_own_loop(self._play(left, whole, progress)) if left else {}
        rows = [[found.get(key) or self.kept[key] for key in keys] for keys in wanted]
        return rows, whole - len(left)

    async def _play(
        self, left: Sequence[tuple[Task, Key]], whole: int, progress: Progress | None
    ) -> dict[Key, dict[str, Any]]:
        """Play what is left, so many at once; the first error that concerns all ends it."""
        found: dict[Key, dict[str, Any]] = {}
        waiting = iter(left)
        last = time.perf_counter()

        async def work() -> None:
            nonlocal last
            for task, key in waiting:
                row = await self._episode(task, key)
                now = time.perf_counter()
                row["seconds"], last = now - last, now  # the sum over all episodes is the wall clock
                self.kept.add(key, row)
                found[key] = row
                if progress is not None:
                    progress(whole - len(left) + len(found), whole)

        async with self.model.endpoint.open():
            workers = [asyncio.ensure_future(work()) for _ in range(self.model.endpoint.patience.at_once)]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
        return found

    async def _episode(self, task: Task, key: Key) -> dict[str, Any]:
        spoken = await run_dialogue(
            self.make_env(), task, self.model, max_tokens=self.max_tokens, temperature=key[2]
        )
        record = outcome_record(spoken.trajectory)
        return {**record, "tokens": None if spoken.usage is None else spoken.usage._asdict()}


def _asked(environment: Environment, task: Task) -> str:
    """A hash of what a task's episode opens with: its messages and tools. "" if its setup fails."""
    try:
        opening = Interaction(environment, task)
    except InfrastructureError:
        return ""
    text = json.dumps([written(opening.messages), opening.schemas], sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _mend(path: Path) -> None:
    """Cut off a last line that was never finished: what is appended must begin a line of its own."""
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return
    try:
        with path.open("r+b") as file:
            file.truncate(whole)
    except OSError as error:
        raise DataError(f"{path} ends in the middle of a line and cannot be mended: {error}") from None
