"""Two clean environments, and members that make them faulty."""

import asyncio
import time

from renshu.check import check_environment
from renshu.envs import Environment, Tasks, call, reward, say, success
from renshu.tools import tool
from renshu.types import Task

PEOPLE = ("Ann", "Bo", "Cy", "Dee", "Eve")


def draw(random):
    return {"name": random.choice(PEOPLE), "room": random.randint(100, 99999)}


class Clerk(Environment):
    """Find a person's room and say it."""

    system = "Answer with the number of the room, nothing else."
    max_turns = 4
    tasks = Tasks.generated(draw, train=40, dev=20, test=20, name="clerk")

    def setup(self, task):
        return f"Where is {task['name']}?"

    @tool
    def look_up(self, name: str) -> int:
        """Find the room of a person.

        Args:
            name: the person's first name
        """
        return self.task["room"]

    def answered(self, trajectory):
        return trajectory.messages[-1].content.strip().casefold()

    @success
    def solved(self, trajectory):
        return self.answered(trajectory) == str(self.task["room"])

    @reward(1.0)
    def right(self, trajectory):
        return float(self.answered(trajectory) == str(self.task["room"]))

    def solve(self):
        yield say((yield call("look_up", name=self.task["name"])))


class Store(Environment):
    """Order what is missing."""

    system = "You keep a store. Order what is missing."
    max_turns = 4
    tasks = Tasks.generated(
        lambda random: {"wanted": random.randint(20, 9999), "there": random.randint(0, 9)},
        train=40,
        dev=20,
        test=20,
        name="store",
    )

    def setup(self, task):
        self.ordered = 0
        return f"We need {task['wanted']} nails."

    @tool
    def count(self) -> int:
        """Count the nails on the shelf."""
        return self.task["there"]

    @tool
    def order(self, amount: int) -> str:
        """Order more nails.

        Args:
            amount: how many
        """
        self.ordered += amount
        return f"ordered {amount}"

    @success
    def stocked(self):
        return self.ordered + self.task["there"] == self.task["wanted"]

    @reward(1.0)
    def right(self):
        return float(self.ordered + self.task["there"] == self.task["wanted"])

    def solve(self):
        there = yield call("count")
        yield call("order", amount=self.task["wanted"] - int(there))
        yield say("Done.")


def made(base, **members):
    return type("Made", (base,), members)


def findings(environment, **options):
    return check_environment(environment, samples=6, **options).findings


def errors(environment):
    return sorted({finding.code for finding in findings(environment) if finding.severity == "error"})


def codes(environment):
    return {finding.code for finding in findings(environment)}


def fields(**more):
    return Tasks.generated(lambda random: {**draw(random), **more}, train=40, dev=20, test=20, name="clerk")


def last(trajectory):
    return trajectory.messages[-1].content


def succeeding(test):
    """Success and reward of one kind."""
    return {
        "solved": success(lambda self, trajectory: bool(test(self, trajectory))),
        "right": reward(1.0)(lambda self, trajectory: float(bool(test(self, trajectory)))),
    }


def stocking(test):
    return {"stocked": success(lambda self: test(self)), "right": reward(1.0)(lambda self: float(test(self)))}


def looking_up(answer, docstring="Find the room of a person.", name="look_up", **options):
    def look_up(self, name: str) -> str:
        return answer(self, name)

    look_up.__doc__, look_up.__name__ = docstring, name
    return tool(**options)(look_up) if options else tool(look_up)


def swallowing(key):
    def right(self, trajectory):
        try:
            return float(last(trajectory) == str(self.task[key]))
        except Exception:
            return 0.0

    return reward(1.0)(right)


def naming(key):
    def right(self, trajectory):
        try:
            return float(int(last(trajectory)) == self.task[key])
        except ValueError:
            return 0.0

    return reward(1.0)(right)


def silent_order(answer):
    def order(self, amount: int) -> str:
        """Order more nails."""
        self.ordered += amount
        return answer

    return tool(order)


def collecting(log):
    """Success by a log that lives as long as what it is an attribute of."""

    def setup(self, task):
        if log == "own":
            self.orders = []
        return f"We need {task['wanted']} nails."

    def order(self, amount: int) -> str:
        """Order more nails."""
        self.orders.append(amount)
        return "ordered"

    def right(self):
        return float(sum(self.orders[-1:]) + self.task["there"] == self.task["wanted"])

    return {
        "orders": [],
        "setup": setup,
        "order": tool(order),
        "right": reward(1.0)(right),
        "stocked": success(lambda self: bool(right(self))),
    }


def popping(copy):
    def setup(self, task):
        self.rooms = list(task["rooms"]) if copy else task["rooms"]
        return f"Where is {task['name']}?"

    def look_up(self, name: str) -> int:
        """Find the room of a person."""
        return self.rooms.pop()

    return {"setup": setup, "look_up": tool(look_up), "tasks": ROOMS}


ROOMS = Tasks.generated(
    lambda random: (lambda drawn: {**drawn, "rooms": [1, 2, drawn["room"]]})(draw(random)),
    train=40,
    dev=20,
    test=20,
    name="clerk",
)


def waiting(wait):
    async def look_up(self, name: str) -> int:
        """Find the room of a person."""
        await wait()
        return self.task["room"]

    async def look_up_blocking(self, name: str) -> int:
        """Find the room of a person."""
        time.sleep(0.001)
        return self.task["room"]

    chosen = look_up if wait else look_up_blocking
    chosen.__name__ = "look_up"
    return tool(chosen)


async def pause():
    await asyncio.sleep(0.001)


def gold_answer(form):
    def solve(self):
        room = yield call("look_up", name=self.task["name"])
        yield say(form.format(room))

    return solve


def tagged(self, trajectory):
    return f"<answer>{self.task['room']}</answer>" in last(trajectory)


def framed(self, trajectory):
    return last(trajectory) == f"ROOM NUMBER = {self.task['room']}"


@tool
def undocumented(self, name: str) -> int:
    return self.task["room"]


@tool
def Look_Up(self, name: str) -> int:
    """Find the room of a person in the other building."""
    return 0


ASKING = "Where is {name}? Write your answer as <answer>101</answer>."
SAME = [Task(f"rows/{i}", {"name": PEOPLE[i % 5], "room": 100 + i}) for i in range(40)]


def apart(shift):
    return Tasks(SAME[:20], SAME[20 - shift : 30 - shift], SAME[30 - shift : 40 - shift])
