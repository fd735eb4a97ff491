"""What desks share where one option of a list must be taken: the lowest number among the rows that fit.

A row is text: an id, then columns, separated by single spaces; the number to minimise stands behind its unit
(`A82 09:30 $975 direct`, unit `$`). A subclass has the tools; listing, taking and scoring are here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from renshu.envs.environment import Environment, reward, success
from renshu.errors import ToolError
from renshu.types import Stop, Trajectory

Place = tuple[str, ...]  # where a list is from: (city, date) or (site,)


def id_of(row: str) -> str:
    return row.split(" ", 1)[0]


def cost_of(row: str, unit: str) -> int:
    """The number behind the unit: 975 in `A82 09:30 $975 direct` with unit `$`."""
    return next(
        int(word[len(unit) :]) for word in row.split(" ") if re.fullmatch(re.escape(unit) + r"\d+", word)
    )


class ChoiceDesk(Environment):
    """List options, then take exactly one: the lowest that fits, from the right place; then say so.

    A subclass sets `place`, `rows` and `fitting` in `setup` and calls `show` and `take` from its tools.
    """

    unit: ClassVar[str]  # stands before the number to minimise
    max_turns = 6

    place: Place  # the right place
    rows: Sequence[str]  # its options, as the tool lists them
    fitting: Sequence[str]  # those that meet every condition

    def begin(self, place: Place, rows: Sequence[str], fitting: Sequence[str]) -> None:
        self.place, self.rows, self.fitting = place, rows, fitting
        self.shown: dict[str, tuple[Place, str]] = {}  # by id, as last listed
        self.taken: list[tuple[Place, str]] = []

    @property
    def best(self) -> str:
        return min(self.fitting, key=lambda row: cost_of(row, self.unit))

    def show(self, place: Place, rows: Sequence[str], *, lowest_first: bool = False) -> str:
        """The rows as a tool lists them; from now on they can be taken."""
        self.shown.update((id_of(row), (place, row)) for row in rows)
        ordered = sorted(rows, key=lambda row: cost_of(row, self.unit)) if lowest_first else rows
        return "\n".join(ordered) or "none"

    def look_up(self, id: str) -> str:
        """The row of an option listed before. Raises ToolError if there is none."""
        if id not in self.shown:
            raise ToolError(f"{id} is not on the list")
        return self.shown[id][1]

    def take(self, id: str) -> None:
        self.look_up(id)
        self.taken.append(self.shown[id])

    def grade(self, trajectory: Trajectory) -> float:
        """As a person would: 1 for the best option, 0.2 for a dearer one that fits, 0 for all else.

        All else: another place, a condition ignored, nothing taken, two taken, no answer at the end, or an
        answer that names another option than the one taken.
        """
        if trajectory.stop is not Stop.ANSWERED or len(self.taken) != 1:
            return 0.0
        place, row = self.taken[0]
        words = re.findall(r"\w+", trajectory.messages[-1].content)
        misnamed = any(word in self.shown and word != id_of(row) for word in words)
        if not words or misnamed or place != self.place or row not in self.fitting:
            return 0.0
        return 1.0 if row == self.best else 0.2

    @success
    def solved(self, trajectory: Trajectory) -> bool:
        return self.grade(trajectory) == 1.0

    @reward(1.0, kind="outcome")
    def choice(self, trajectory: Trajectory) -> float:
        return self.grade(trajectory)

    @reward(0.1, kind="format")
    def well_formed(self, trajectory: Trajectory) -> float:
        """1 if every call could be read and run, there was one, and an answer ended the episode."""
        counts = trajectory.counts
        faults = counts["bad_calls"] + counts["tool_errors"] + counts["timeouts"]
        return float(trajectory.stop is Stop.ANSWERED and counts["calls"] > 0 and faults == 0)
