from renshu import Environment, Tasks, call, reward, say, success, tool


class Depot(Environment):
    system = "Look up where a pallet stands. Answer with the shelf only."
    max_turns = 3
    tasks = Tasks.generated(
        lambda random: {
            "pallet": random.randint(100, 999),
            "shelf": f"{random.choice('ABCDEF')}{random.randint(1, 40)}",
        },
        train=200,
        dev=30,
        test=60,
    )

    def setup(self, task):
        return f"Where is pallet {task['pallet']}?"

    @tool
    def where(self, pallet: int) -> str:
        """Shelf of a pallet."""
        return self.task["shelf"] if pallet == self.task["pallet"] else "unknown"

    @success
    def found(self, trajectory):
        return trajectory.messages[-1].content.strip() == self.task["shelf"]

    @reward(1.0)
    def reward_found(self, trajectory):
        return float(self.found(trajectory))

    def solve(self):
        shelf = yield call("where", pallet=self.task["pallet"])
        yield say(shelf)

    def hurried(self):
        yield say("A1")
