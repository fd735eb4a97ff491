"""Questions about a small table, asked through a query tool."""

from dataclasses import dataclass
from typing import Literal

from renshu import Environment, Tasks, call, reward, say, success, tool


@dataclass
class Where:
    column: Literal["city", "team"]
    value: str


def table(random):
    cities, teams = ["Oslo", "Rome", "Kyiv"], ["red", "blue"]
    rows = [
        {"name": f"u{i}", "city": random.choice(cities), "team": random.choice(teams)}
        for i in range(random.randint(8, 30))
    ]
    return {"rows": rows, "city": random.choice(cities)}


class Rows(Environment):
    system = "Use count_rows to count people in the table. Answer with a number only."
    max_turns = 4
    tasks = Tasks.generated(table, train=300, dev=50, test=100)

    def setup(self, task):
        return f"How many people live in {task['city']}?"

    @tool
    def count_rows(self, where: Where) -> int:
        """SELECT COUNT(*) FROM people WHERE column = value.

        Args:
            where: the condition
        """
        return sum(row[where.column] == where.value for row in self.task["rows"])

    def truth(self):
        return str(sum(row["city"] == self.task["city"] for row in self.task["rows"]))

    @success
    def counted(self, trajectory):
        return trajectory.messages[-1].content.strip() == self.truth()

    @reward(1.0)
    def count_is_right(self, trajectory):
        return float(self.counted(trajectory))

    def solve(self):
        got = yield call("count_rows", where={"column": "city", "value": self.task["city"]})
        yield say(got)
