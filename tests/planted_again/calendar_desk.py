"""When does the first meeting start? Async tools over a calendar; tasks come from a file."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from renshu import Environment, Tasks, ToolError, reward, success, tool

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Meeting:
    title: str
    start: str


class Calendar(Environment):
    system = "You are a calendar assistant. Reply with nothing but the time, as HH:MM."
    max_turns = 5
    tasks = Tasks.from_jsonl(HERE / "meetings.jsonl", split_by="id", shares=(0.6, 0.2, 0.2))

    def setup(self, task):
        return f"At what time does {task['person']}'s meeting on {task['day']} start?"

    @tool(timeout=5)
    async def meetings(self, person: str, day: date) -> list[dict]:
        """List the meetings of a person on a day.

        Args:
            person: first name
            day: the day
        """
        await asyncio.sleep(0)
        if (person, day.isoformat()) != (self.task["person"], self.task["day"]):
            raise ToolError("nothing found")
        return [asdict(Meeting("planning", self.task["start"]))]

    @success
    def told(self, trajectory):
        return trajectory.messages[-1].content.strip() in self.task["accept"]

    @reward(1.0)
    def right(self, trajectory):
        return float(self.told(trajectory))
