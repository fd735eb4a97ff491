"""Lights out on a row: pressing a lamp switches it and its neighbours."""

from renshu import Environment, Tasks, call, reward, say, success, tool

SIZE = 6


def press_all(lamps, presses):
    for press in presses:
        for at in (press - 1, press, press + 1):
            if 0 <= at < SIZE:
                lamps[at] = not lamps[at]
    return lamps


def draw(random):
    presses = sorted(random.sample(range(SIZE), random.randint(1, 3)))
    return {"presses": presses, "lamps": press_all([False] * SIZE, presses)}


class Lights(Environment):
    system = (
        "Switch all lamps off. Pressing lamp n (0 to 5) switches it and its neighbours. # is on, . is off."
    )
    max_turns = 6
    tasks = Tasks.generated(draw, train=300, dev=40, test=100)
    pressed: list[int]

    def setup(self, task):
        self.pressed = []
        return "The row is: " + self.row()

    def row(self):
        return "".join(".#"[on] for on in press_all(list(self.task["lamps"]), self.pressed))

    @tool
    def press(self, lamp: int) -> str:
        """Press a lamp and see the row.

        Args:
            lamp: its number, from 0
        """
        self.pressed.append(lamp)
        return self.row()

    @success
    def dark(self):
        return "#" not in self.row()

    @reward(1.0)
    def all_off(self):
        return float(self.dark())

    def solve(self):
        for lamp in self.task["presses"]:
            yield call("press", lamp=lamp)
        yield say("All lamps are off.")
