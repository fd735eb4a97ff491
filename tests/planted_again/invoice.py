"""Total of an invoice with tax. The answer may stand in a sentence."""

import re

from renshu import Environment, Tasks, call, reward, say, success, tool


class Invoice(Environment):
    system = "You help an accountant. State the total as 'Total: 12.34'."
    max_turns = 3
    tasks = Tasks.generated(
        lambda random: {
            "no": random.randint(1000, 9999),
            "net": random.randint(20, 400),
            "tax": random.choice([7, 19]),
        },
        train=300,
        dev=50,
        test=100,
    )

    def setup(self, task):
        return f"What is the total of invoice {task['no']}, with tax?"

    @tool
    def invoice(self, no: int) -> dict:
        """Net amount and tax rate (percent) of an invoice."""
        return {"net": self.task["net"], "tax_percent": self.task["tax"]}

    def total(self):
        return f"{self.task['net'] * (100 + self.task['tax']) / 100:.2f}"

    @success
    def right(self, trajectory):
        match = re.search(r"Total: (\d+\.\d\d)", trajectory.messages[-1].content)
        return match is not None and match.group(1) == self.total()

    @reward(1.0)
    def total_reward(self, trajectory):
        return float(self.right(trajectory))

    def solve(self):
        yield call("invoice", no=self.task["no"])
        yield say(f"Total: {self.total()}")
