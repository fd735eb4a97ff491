"""Must-pass cases: an episode somebody wrote down, and what it must be worth.

- name: the right room
  task: test/0                      # split/number, a task's id, or its fields as a mapping
  moves:                            # or `answer: "101"`, or `messages: [...]` in OpenAI's shape
    - {call: look_up, arguments: {name: Ann}}
    - {say: "101"}
  success: true
  reward: [1.0, 1.0]                # lowest and highest; or one number
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from renshu.chat import Reply
from renshu.check.findings import Finding, found
from renshu.check.plays import within
from renshu.config import StrictModel, read_yaml
from renshu.envs.environment import Environment
from renshu.envs.interaction import Interaction, in_own_loop
from renshu.envs.tasks import SPLITS
from renshu.errors import ContractError, DataError, RenshuError
from renshu.types import Message, Scored, Stop, Task, ToolCall, Trajectory

SEARCHED = 10_000  # tasks of a split among which an id is looked for
SLACK = 1e-6  # by which a reward may miss its bounds
SECONDS = 60.0  # of one case


class CaseMove(StrictModel):
    """One turn of the policy: a call with its arguments, or a text. think: the thought before it."""

    call: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)
    say: str | None = None
    think: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.call is None) == (self.say is None):
            raise ValueError("write either call (with arguments) or say")
        return self


class Case(StrictModel):
    """One case: a task, what the policy does, and what that must be worth."""

    name: str = ""
    task: str | dict[str, Any]
    moves: tuple[CaseMove, ...] | None = None
    messages: tuple[dict[str, Any], ...] | None = None
    answer: str | None = None
    success: bool | None = None
    reward: float | tuple[float, float] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if [self.moves, self.messages, self.answer].count(None) != 2:
            raise ValueError("write exactly one of moves, messages and answer")
        if self.success is None and self.reward is None:
            raise ValueError("say what it must be worth: success, reward or both")
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        if self.reward is None or isinstance(self.reward, tuple):
            return self.reward
        return (self.reward, self.reward)


class _File(StrictModel):
    cases: tuple[Case, ...] = Field(min_length=1)


@dataclass(frozen=True)
class CaseResult:
    """How a case ended. problem: why it failed, "" if it passed. score: None where it could not be played."""

    name: str
    problem: str
    success: bool | None = None
    reward: float | None = None

    @property
    def passed(self) -> bool:
        return not self.problem


def read_cases(path: str | Path) -> tuple[Case, ...]:
    """The cases of a YAML file: a list, or a mapping with the key `cases`. Raises ConfigError."""
    data = read_yaml(path)
    return _File.from_dict({"cases": data} if isinstance(data, list) else data or {}, source=path).cases


def play_cases(environment: type[Environment], cases: Sequence[Case]) -> list[CaseResult]:
    """Play every case through the environment."""
    return [_judged(environment, case, number) for number, case in enumerate(cases, start=1)]


def failed_cases(results: Sequence[CaseResult]) -> Iterator[Finding]:
    for result in results:
        if not result.passed:
            yield found("case_failed", result.name, result.problem)


def require_cases(environment: type[Environment], cases: Sequence[Case]) -> list[CaseResult]:
    """The results, all of them passed. Raises ContractError that lists the cases that fail, and why."""
    results = play_cases(environment, cases)
    failed = [result for result in results if not result.passed]
    if failed:
        listed = "\n".join(f"  - {result.name}: {result.problem}" for result in failed)
        raise ContractError(
            f"{len(failed)} of {len(results)} must-pass cases fail, so nothing is trained:\n{listed}\n"
            f"Mend {environment.__name__} or the cases."
        )
    return results


def _judged(environment: type[Environment], case: Case, number: int) -> CaseResult:
    name = case.name or f"case {number}"
    try:
        trajectory = within(SECONDS, lambda: _played(environment, case))
    except RenshuError as error:
        return CaseResult(name, str(error))
    except Exception as error:
        return CaseResult(
            name, f"it cannot be played: {type(error).__name__}: {error}{_lacking(environment, case)}"
        )
    score = trajectory.score
    if not isinstance(score, Scored):
        return CaseResult(name, f"it is unscored: {score.reason}{_lacking(environment, case)}")
    return CaseResult(name, "; ".join(_differences(case, score)), score.success, score.value)


def _lacking(environment: type[Environment], case: Case) -> str:
    """A remark on fields that the environment's tasks have and the case's own task has not."""
    if isinstance(case.task, str):
        return ""
    assert environment.tasks is not None  # the contract was checked
    lacks = [repr(name) for name in environment.tasks.train[0].fields if name not in case.task]
    return f"; its task lacks {', '.join(lacks)}, which the environment's tasks have" if lacks else ""


def _differences(case: Case, score: Scored) -> Iterator[str]:
    if case.success is not None and score.success is not case.success:
        yield f"success is {score.success}, expected {case.success}"
    if case.bounds is not None:
        low, high = case.bounds
        if not low - SLACK <= score.value <= high + SLACK:
            expected = f"{low:g}" if low == high else f"{low:g} to {high:g}"
            yield f"reward is {score.value:g}, expected {expected} (parts {dict(score.parts)})"


def _played(environment: type[Environment], case: Case) -> Trajectory:
    return in_own_loop(_replay(environment(), find_task(environment, case.task), list(_replies(case))))


async def _replay(environment: Environment, task: Task, replies: Sequence[Reply]) -> Trajectory:
    """The episode in which the policy replies just so. Raises DataError if it is longer or shorter than
    that.
    """
    interaction = Interaction(environment, task)
    for number, reply in enumerate(replies, start=1):
        outcome = await interaction.answer(reply)
        if isinstance(outcome, Stop):
            if number < len(replies):
                raise DataError(f"the episode ended ({outcome}) after {number} of {len(replies)} moves")
            return interaction.finish(outcome)
    raise DataError(f"the episode goes on after the {len(replies)} moves; end them with what the policy says")


def _replies(case: Case) -> Iterator[Reply]:
    if case.answer is not None:
        yield Reply(case.answer, None)
    for move in case.moves or ():
        calls = (ToolCall(move.call, move.arguments),) if move.call is not None else ()
        yield Reply(move.say or "", move.think, calls)
    for data in case.messages or ():
        if data.get("role") == "assistant":
            message = _message(data)
            yield Reply(message.content, message.reasoning, message.tool_calls)


def _message(data: Mapping[str, Any]) -> Message:
    try:
        calls = tuple(_call(call) for call in data.get("tool_calls") or ())
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"a tool call that cannot be read: {type(error).__name__}: {error}") from None
    thought = data.get("reasoning") or data.get("reasoning_content")
    return Message("assistant", str(data.get("content") or ""), thought, calls)


def _call(data: Mapping[str, Any]) -> ToolCall:
    function = data.get("function", data)
    arguments = function["arguments"]
    return ToolCall(function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments)


def find_task(environment: type[Environment], named: str | Mapping[str, Any]) -> Task:
    """The task with these fields, at `split/number`, or of this id. Raises DataError."""
    if not isinstance(named, str):
        return Task("case", dict(named))
    assert environment.tasks is not None  # the contract was checked
    split, _, number = named.rpartition("/")
    if split in SPLITS and number.isdecimal():
        tasks = environment.tasks.split(split)
        if int(number) >= len(tasks):
            raise DataError(f"there is no task {named}: the split has {len(tasks)}")
        return tasks[int(number)]
    for name in SPLITS:
        for task in getattr(environment.tasks, name)[:SEARCHED]:
            if task.id == named:
                return task  # type: ignore[no-any-return]
    raise DataError(f"there is no task {named!r}; write split/number (test/0), an id, or its fields")
