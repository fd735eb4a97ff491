"""Ship every open order of a table. Tables come from a file."""

import json
from pathlib import Path

from renshu import Environment, Tasks, ToolError, call, reward, say, success, tool


class Warehouse(Environment):
    system = "You work in a warehouse. Find the open orders and ship each of them, no other."
    max_turns = 6
    tasks = Tasks.from_jsonl(Path(__file__).parent / "warehouse.jsonl", split_by="split")

    def setup(self, task):
        self.rows = [dict(row) for row in task["rows"]]
        return f"Please ship what is open on list {task['id']}."

    @tool
    def select(self, open: bool) -> list[dict]:
        """Orders of the table.

        Args:
            open: only orders that are open (true) or closed (false)
        """
        return [row for row in self.rows if row["open"] == open]

    @tool
    def ship(self, number: int) -> str:
        """Ship an order.

        Args:
            number: of the order
        """
        for row in self.rows:
            if row["number"] == number and row["open"]:
                row["open"] = False
                return "shipped"
        raise ToolError(f"order {number} is not open")

    @success
    def all_shipped(self):
        return not any(row["open"] for row in self.rows)

    @reward(1.0)
    def shipped(self):
        return float(self.all_shipped())

    def solve(self):
        rows = json.loads((yield call("select", open=True)))
        for row in rows:
            yield call("ship", number=row["number"])
        yield say("All are shipped.")
