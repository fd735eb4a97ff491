"""A puzzle: press buttons until all lights are on. No gold solution is written."""

from renshu import Environment, Tasks, reward, success, tool


def draw(random):
    lights = [1] * 5
    for at in random.sample(range(5), random.randint(1, 3)):
        for i in (at - 1, at, at + 1):
            if 0 <= i < 5:
                lights[i] ^= 1
    if all(lights):
        lights[0] ^= 1
        lights[1] ^= 1
    return {"lights": lights}


class Lights(Environment):
    system = (
        "Button n switches light n and its neighbours. Turn all five on with few presses, then say 'done'."
    )
    max_turns = 8
    tasks = Tasks.generated(draw, train=300, dev=50, test=100)

    def setup(self, task):
        self.lights = list(task["lights"])
        return "Lights now: " + " ".join("on" if x else "off" for x in self.lights)

    @tool
    def press(self, button: int) -> str:
        """Press a button.

        Args:
            button: 0 to 4
        """
        if not 0 <= button < 5:
            raise ValueError("button must be 0 to 4")
        for i in (button - 1, button, button + 1):
            if 0 <= i < 5:
                self.lights[i] ^= 1
        return " ".join("on" if x else "off" for x in self.lights)

    @success
    def all_on(self):
        return all(self.lights)

    @reward(1.0)
    def solved(self):
        return float(self.all_on())

    @reward(0.2, kind="process")
    def few(self, trajectory):
        return max(0.0, 1 - trajectory.counts["calls"] / 8) if self.all_on() else 0.0
