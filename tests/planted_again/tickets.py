"""Route a ticket to one of three teams, as the customer's contract says."""

from renshu import Environment, Tasks, ToolError, call, reward, say, success, tool

TEAMS = ["billing", "network", "hardware"]


class Tickets(Environment):
    system = (
        "Look at the customer's contract before you decide. Answer with the name of the team, nothing else."
    )
    max_turns = 3
    tasks = Tasks.generated(
        lambda random: {"customer": f"C{random.randint(100, 999)}", "team": random.choice(TEAMS)},
        train=300,
        dev=50,
        test=100,
    )

    def setup(self, task):
        return f"Customer {task['customer']} wrote. Which team is it for: {', '.join(TEAMS)}?"

    @tool
    def contract(self, customer: str) -> dict[str, str]:
        """The contract of a customer.

        Args:
            customer: such as C123
        """
        if customer != self.task["customer"]:
            raise ToolError("no such customer")
        return {"customer": customer, "team": self.task["team"]}

    @success
    def routed(self, trajectory):
        return trajectory.messages[-1].content.lower().strip(" .") == self.task["team"]

    @reward(1.0)
    def team(self, trajectory):
        return float(self.routed(trajectory))

    def solve(self):
        yield call("contract", customer=self.task["customer"])
        yield say(self.task["team"])
