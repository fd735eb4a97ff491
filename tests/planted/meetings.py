"""Find the first hour at which everybody is free, and book it."""

from renshu import Environment, Tasks, ToolError, call, reward, say, success, tool


def draw(random):
    people = random.sample(["Ida", "Jon", "Kim", "Lea", "Max"], 2)
    free = random.randint(9, 16)
    busy = {}
    for person in people:
        others = [hour for hour in range(9, 17) if hour > free]
        busy[person] = sorted([*range(9, free), *random.sample(others, len(others) // 2)])
    return {"people": people, "busy": busy, "hour": free}


class Meetings(Environment):
    system = "You book meetings of one hour between 9 and 17, as early as everybody can."
    max_turns = 5
    tasks = Tasks.generated(draw, train=300, dev=40, test=100)

    def setup(self, task):
        self.booked = None
        return f"Book a meeting for {' and '.join(task['people'])}."

    @tool
    def calendar(self, person: str) -> list[int]:
        """Hours at which a person is busy.

        Args:
            person: first name
        """
        if person not in self.task["busy"]:
            raise ToolError(f"{person} does not work here")
        return self.task["busy"][person]

    @tool
    def book(self, hour: int) -> str:
        """Book the room for an hour.

        Args:
            hour: when the meeting starts, 9 to 16
        """
        self.booked = hour
        return f"booked at {hour}"

    @success
    def solved(self):
        return self.booked == self.task["hour"]

    @reward(1.0)
    def at_the_right_hour(self):
        return 1.0 if self.solved() else 0.0

    def solve(self):
        busy = set()
        for person in self.task["people"]:
            hours = yield call("calendar", person=person)
            busy.update(int(hour) for hour in hours.strip("[]").split(",") if hour)
        yield call("book", hour=min(set(range(9, 17)) - busy))
        yield say("It is booked.")
