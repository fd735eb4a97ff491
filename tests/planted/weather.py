"""The forecast, from a service that is asked asynchronously."""

import asyncio

from renshu import Environment, Tasks, call, reward, say, success, tool

CITIES = ("Oslo", "Lyon", "Kobe", "Lima")


def draw(random):
    return {"city": random.choice(CITIES), "high": random.randint(-10, 40), "low": random.randint(-30, -11)}


class Weather(Environment):
    system = "Answer questions about the weather. Reply with the number of degrees only."
    tasks = Tasks.generated(draw, train=300, dev=40, test=100)

    def setup(self, task):
        return f"How warm does it get in {task['city']} today?"

    async def fetch(self, city):
        await asyncio.sleep(0)
        return {"city": city, "high": self.task["high"], "low": self.task["low"]}

    @tool
    async def forecast(self, city: str) -> dict:
        """Today's forecast.

        Args:
            city: name of the city
        """
        answer = await self.fetch(city)
        return answer

    @success
    def degrees(self, trajectory):
        return trajectory.messages[-1].content.strip() == str(self.task["high"])

    @reward(1.0)
    def right(self, trajectory):
        return float(self.degrees(trajectory))

    def solve(self):
        yield call("forecast", city=self.task["city"])
        yield say(str(self.task["high"]))
