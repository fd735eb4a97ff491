"""A rubric: named parts of a reward with weights, and the rules by which they become one typed score.

A part that returns None does not apply and is left out of the sum. A part that raises or returns NaN says
that the scorer failed, not that the policy did: the whole rollout is then `Unscored`, with the part's name in
the reason. A part of kind `process` may judge every turn: it returns a list, whose mean counts as its value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from statistics import fmean
from typing import Any, Literal, get_args

from renshu.errors import ContractError
from renshu.rewards.lists import reward_list, reward_number
from renshu.types import Score, Scored, Trajectory, Unscored

Kind = Literal["outcome", "process", "format", "judge"]


@dataclass(frozen=True)
class Part:
    """One part of a reward.

    measure: trajectory → reward, by convention within 0..1, or None where the part does not apply. A process
        part may return one of these for each of the model's turns; the mean of the known ones is its reward,
        so that an episode gains nothing by being long.
    kind: `outcome` (was the task solved), `process` (how), `format` (well-formed), `judge` (an opinion on the
        outcome).
    """

    name: str
    weight: float
    kind: Kind
    measure: Callable[[Trajectory], Any]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ContractError(
                f"reward {self.name!r}: unknown kind {self.kind!r}; choose one of {', '.join(get_args(Kind))}"
            )
        try:
            reward_number(f"weight of reward {self.name!r}", self.weight)
        except ValueError as error:
            raise ContractError(str(error)) from error


class Rubric:
    """Parts and an optional success function, asked once at the end of an episode."""

    def __init__(self, parts: Sequence[Part], success: Callable[[Trajectory], Any] | None = None) -> None:
        self.parts = tuple(parts)
        self.success = success

    @property
    def deciding(self) -> tuple[Part, ...]:
        """The parts without which a score means nothing: those of the outcome, or else the judges."""
        outcome = tuple(part for part in self.parts if part.kind == "outcome")
        return outcome or tuple(part for part in self.parts if part.kind == "judge")

    def score(self, trajectory: Trajectory) -> Score:
        """The weighted sum of the parts that apply, or why there is none.

        `Unscored.reason` reads `cause: detail`; the causes are `reward_failed`, `judge_failed`,
        `success_failed` and `no_outcome`.
        """
        values: dict[str, float | None] = {}
        steps: dict[str, tuple[float | None, ...]] = {}
        for part in self.parts:
            try:
                returned = part.measure(trajectory)
                if part.kind == "process" and _lists(returned):
                    turns = reward_list(part.name, returned, _turns(trajectory), of="turn")
                    steps[part.name] = tuple(None if t is None else part.weight * t for t in turns)
                    known = [turn for turn in turns if turn is not None]
                    values[part.name] = fmean(known) if known else None
                else:
                    values[part.name] = reward_number("it returned", returned)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # `sys.exit()` inside a scorer must not end the run
                cause = "judge_failed" if part.kind == "judge" else "reward_failed"
                return Unscored(f"{cause}: part {part.name!r}: {_describe(error)}")
        if all(values[part.name] is None for part in self.deciding):
            return Unscored(f"no_outcome: {_names(self.deciding)} gave no reward")
        try:
            success = None if self.success is None else truth(self.success(trajectory))
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return Unscored(f"success_failed: {_describe(error)}")
        total = sum(part.weight * (values[part.name] or 0.0) for part in self.parts)
        if not math.isfinite(total):
            return Unscored(f"reward_failed: the weighted sum of the parts is {total}")
        return Scored(value=total, parts=values, success=success, steps=steps)


def truth(value: Any) -> bool | None:
    """What a success function returned: a bool (or the number 0 or 1), None where it is not defined.

    Raises ValueError for anything else: `"no"` and NaN would count as success.
    """
    if hasattr(value, "item"):  # a bool of numpy or torch
        value = value.item()
    if value is None:
        return None
    if isinstance(value, Real) and value in (0, 1):
        return bool(value)
    raise ValueError(f"it returned neither True nor False but {type(value).__name__} {value!r:.60}")


def cause_of(score: Unscored) -> str:
    """The cause at the head of an unscored rollout's reason, to count by: `judge_failed`, `infrastructure`,
    …
    """
    return score.reason.partition(":")[0]


def _lists(value: Any) -> bool:
    """Whether a part returned several numbers: a list or tuple, or an array with a dimension."""
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def _turns(trajectory: Trajectory) -> int:
    """Turns of the model; assistant messages in the opening, such as solved examples, are none."""
    said = sum(message.role == "assistant" for message in trajectory.messages)
    return trajectory.counts.get("turns", said)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _names(parts: Sequence[Part]) -> str:
    return ", ".join(f"part {part.name!r}" for part in parts) if parts else "no outcome part"
