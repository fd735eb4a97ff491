"""Average temperature of some sensors. Reward falls with the distance from the truth."""

import re

import numpy as np

from renshu import Environment, Tasks, call, reward, say, success, think, tool


def draw(random):
    rooms = random.sample(["attic", "cellar", "hall", "kitchen", "office"], 3)
    return {"rooms": rooms, "degrees": {r: random.randint(10, 29) for r in rooms}}


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"-?\d+(?:\.\d+)?", text)]


class Thermo(Environment):
    system = "Measure every room you are asked about. Answer with the mean, rounded to one decimal."
    max_turns = 6
    tasks = Tasks.generated(draw, train=500, dev=50, test=200)

    def setup(self, task):
        return "What is the mean temperature of " + ", ".join(task["rooms"]) + "?"

    @tool
    def measure(self, room: str) -> int:
        """Temperature of a room in degrees Celsius.

        Args:
            room: its name
        """
        return self.task["degrees"][room]

    @property
    def mean(self) -> float:
        return round(sum(self.task["degrees"].values()) / 3, 1)

    @success
    def right(self, trajectory) -> bool:
        return numbers(trajectory.messages[-1].content) == [self.mean]

    @reward(1.0)
    def close(self, trajectory) -> float:
        said = numbers(trajectory.messages[-1].content)
        if not said:
            return 0.0
        return float(np.exp(-abs(np.mean(said) - self.mean)))

    def solve(self):
        got = []
        for room in self.task["rooms"]:
            got.append(int((yield call("measure", room=room))))
        yield think(f"({' + '.join(map(str, got))}) / 3 = {self.mean}")
        yield say(str(self.mean))
