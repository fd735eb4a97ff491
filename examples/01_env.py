"""An environment of your own: tools, a truth, a reward, and a check before anything is trained.

python examples/01_env.py
"""

from random import Random
from typing import Any

from renshu.envs import Environment, Moves, Tasks, call, check_env, play_through, reward, say, success
from renshu.tools import tool
from renshu.types import Scored, Task, Trajectory


def draw(random: Random) -> dict[str, Any]:
    """The fields of one task. `random` is seeded by the task's identity: task 7 is always the same."""
    stock = {item: random.randint(0, 9) for item in random.sample(["nails", "screws", "bolts", "hooks"], 3)}
    item = random.choice(list(stock))
    return {"stock": stock, "item": item, "wanted": random.randint(10, 19)}


class Storeroom(Environment):
    """Order what is missing, and no more."""

    system = "You keep the storeroom."
    max_turns = 4
    tasks = Tasks.generated(draw, name="storeroom", train=1000, dev=100, test=400)

    def setup(self, task: Task) -> str:
        self.ordered: dict[str, int] = {}  # a fresh object plays every episode
        return f"We need {task['wanted']} {task['item']}. Order what is missing."

    @tool
    def count(self, item: str) -> int:
        """How many are there.

        Args:
            item: what to count
        """
        return int(self.task["stock"].get(item, 0))

    @tool
    def order(self, item: str, amount: int) -> str:
        """Order more.

        Args:
            item: what to order
            amount: how many
        """
        self.ordered[item] = self.ordered.get(item, 0) + amount
        return "ordered"

    @property
    def missing(self) -> dict[str, int]:
        return {self.task["item"]: self.task["wanted"] - self.task["stock"][self.task["item"]]}

    @success
    def stocked(self) -> bool:
        """The truth, reported on held-out tasks."""
        return self.ordered == self.missing

    @reward(1.0, kind="outcome")
    def right(self) -> float:
        """What is trained on."""
        return float(self.ordered == self.missing)

    @reward(0.2, kind="format")
    def looked(self, trajectory: Trajectory) -> float:
        counted = [c for m in trajectory.messages for c in m.tool_calls if c.name == "count"]
        return float(bool(counted) and trajectory.counts["bad_calls"] == 0)

    def solve(self) -> Moves:
        """A gold solution: it proves that full reward can be earned, and gives demonstrations."""
        there = yield call("count", item=self.task["item"])
        yield call("order", item=self.task["item"], amount=self.task["wanted"] - int(there))
        yield say("Done.")


def main() -> None:
    print("problems:", [str(problem) for problem in check_env(Storeroom)])
    task = Storeroom.tasks.test[0]
    for message in play_through(Storeroom(), task).messages:
        called = [f"{call.name} {call.arguments}" for call in message.tool_calls]
        print(f"{message.role:>9}  {message.content or ', '.join(called)}")
    blind = play_through(Storeroom(), task, [call("order", item=task["item"], amount=10), say("Done.")])
    assert isinstance(blind.score, Scored)
    print(f"ordering blindly: reward {blind.score.value:g}, success {blind.score.success}")


if __name__ == "__main__":
    main()
