"""What does parking cost?"""

import random as dice

from renshu import Environment, Tasks, call, reward, say, success, tool


def draw(random):
    return {"zone": random.choice("ABC"), "hours": random.randint(1, 24), "plate": random.randint(100, 999)}


class Parking(Environment):
    system = "You sell parking tickets. Look up the price of an hour and sell one ticket."
    tasks = Tasks.generated(draw, train=300, dev=40, test=100)

    def setup(self, task):
        self.sold = []
        greeting = dice.Random(task["plate"]).choice(["Hello!", "Good morning!", "Hi."])
        return f"{greeting} Car {task['plate']} stays {task['hours']} hours in zone {task['zone']}."

    @tool
    def price(self, zone: str) -> int:
        """Price of an hour, in cents.

        Args:
            zone: a letter
        """
        return {"A": 250, "B": 180, "C": 90}[zone]

    @tool
    def sell(self, plate: int, cents: int) -> str:
        """Sell a ticket.

        Args:
            plate: number of the car
            cents: price of the whole stay
        """
        self.sold.append((plate, cents))
        return "sold"

    @success
    def sold_right(self):
        return self.sold == [(self.task["plate"], self.task["hours"] * self.price(self.task["zone"]))]

    @reward(1.0)
    def right(self):
        return float(self.sold_right())

    def solve(self):
        cents = yield call("price", zone=self.task["zone"])
        yield call("sell", plate=self.task["plate"], cents=int(cents) * self.task["hours"])
        yield say("Have a nice day.")
