"""Book a seat on a train that still has one."""

from renshu import Environment, Tasks, ToolError, call, reward, say, success, tool


class Seats(Environment):
    """The cheapest train with free seats must be booked."""

    system = "You book trains. Book the cheapest train that still has a free seat, then say 'Booked.'"
    max_turns = 4
    tasks = Tasks.generated(
        lambda random: {
            "trains": [
                {"train": f"IC{n}", "price": p, "free": f}
                for n, p, f in zip(
                    random.sample(range(100, 999), 4),
                    random.sample(range(20, 90), 4),
                    random.sample([0, 0, 3, 7], 4),
                    strict=True,
                )
            ],
            "town": random.choice(["Bern", "Graz", "Lyon"]),
        },
        train=500,
        dev=60,
        test=120,
    )

    def setup(self, task):
        self.booked = []
        return f"I have to get to {task['town']} tomorrow, as cheaply as possible."

    @tool
    def trains(self) -> list[dict]:
        """All trains of tomorrow with price and free seats."""
        return self.task["trains"]

    @tool
    def book(self, train: str) -> str:
        """Book one seat.

        Args:
            train: its number, such as IC123
        """
        if not any(t["train"] == train and t["free"] for t in self.task["trains"]):
            raise ToolError("no free seat on this train")
        self.booked.append(train)
        return "booked"

    def best(self):
        return min((t for t in self.task["trains"] if t["free"]), key=lambda t: t["price"])["train"]

    @success
    def solved(self) -> bool:
        return self.booked == [self.best()]

    @reward(1.0)
    def cheapest(self) -> float:
        return 1.0 if self.solved() else 0.0

    def solve(self):
        yield call("trains")
        yield call("book", train=self.best())
        yield say("Booked.")
