"""Search a small archive; the reward also looks at how relevant the searches were."""

import numpy as np

from renshu import Environment, Tasks, call, reward, say, success, tool

FOUNDED = {"Aachen": 1870, "Bern": 1834, "Cork": 1845, "Delft": 1842, "Espoo": 1849, "Faro": 1979}


def draw(random):
    return {"city": random.choice(sorted(FOUNDED)), "desk": random.randint(1, 10**6)}


class Research(Environment):
    system = "Answer questions about universities from the archive. Reply with the year only."
    tasks = Tasks.generated(draw, train=300, dev=40, test=100)

    def setup(self, task):
        self.hits: list[float] = []
        return f"Desk {task['desk']} asks: when was the university of {task['city']} founded?"

    @tool
    def search(self, words: str) -> str:
        """Search the archive.

        Args:
            words: what to look for
        """
        found = [city for city in FOUNDED if city.lower() in words.lower()]
        self.hits.append(float(found == [self.task["city"]]))
        return "; ".join(f"{city}: founded {FOUNDED[city]}" for city in found) or "nothing found"

    @success
    def right_year(self, trajectory):
        return trajectory.messages[-1].content.strip() == str(FOUNDED[self.task["city"]])

    @reward(1.0)
    def answered(self, trajectory):
        return float(self.right_year(trajectory))

    @reward(0.3, kind="process")
    def relevance(self):
        return float(np.mean(self.hits)) if self.hits else 0.0

    def solve(self):
        yield call("search", words=f"university of {self.task['city']}")
        yield say(str(FOUNDED[self.task["city"]]))
