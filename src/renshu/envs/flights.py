"""Flights: "Book the cheapest flight to Tokyo next Friday before noon."

Weeks begin on Monday: "this Friday" is the Friday of the current week, "next Friday" that of the week after.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from random import Random
from string import ascii_uppercase
from typing import Any, Literal, get_args

from renshu.envs.choice import ChoiceDesk, cost_of, id_of
from renshu.envs.moves import Moves, call, say
from renshu.envs.tasks import Tasks
from renshu.errors import ToolError
from renshu.seeding import generator
from renshu.tools import tool
from renshu.types import Task

WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
CITIES = (
    *("Tokyo", "Paris", "Lisbon", "Oslo", "Cairo", "Lima", "Seoul", "Madrid", "Dublin", "Vienna", "Athens"),
    *("Rome", "Delhi", "Boston", "Denver", "Berlin", "Prague", "Taipei", "Sydney", "Toronto", "Nairobi"),
)
REQUESTS = (
    "Book the cheapest flight to {city} {day}",
    "Please book me the cheapest flight to {city} {day}",
    "I must be in {city} {day}. Book the cheapest flight",
    "Get me the lowest fare to {city} {day}",
    "I fly to {city} {day}. Book the cheapest flight",
)
Filter = Literal["non-stop", "before noon", "after noon"]
WORDINGS = {
    "before noon": ("before noon", "leaving before noon", "departing before noon"),
    "after noon": ("after noon", "leaving after noon", "departing after noon"),
    "non-stop": ("non-stop", "non-stop only", "it must be non-stop"),
    "under": ("under ${limit}", "for less than ${limit}"),
}


def date_of(day: str, today: datetime.date) -> datetime.date:
    """The date of "tomorrow", "in 3 days", "this Friday", "next Friday", "Friday" or an ISO date.

    A bare weekday is the first one after today. Raises ToolError for anything else.
    """
    words = day.strip().lower().split()
    monday = today - datetime.timedelta(days=today.weekday())
    match words:
        case ["today"]:
            return today
        case ["tomorrow"]:
            return today + datetime.timedelta(days=1)
        case ["in", number, "day" | "days"] if re.fullmatch("[0-9]{1,3}", number):
            return today + datetime.timedelta(days=int(number))
        case ["this" | "next" as week, name] if name.title() in WEEKDAYS:
            return monday + datetime.timedelta(days=WEEKDAYS.index(name.title()) + 7 * (week == "next"))
        case [name] if name.title() in WEEKDAYS:
            return today + datetime.timedelta(
                days=(WEEKDAYS.index(name.title()) - today.weekday() - 1) % 7 + 1
            )
    try:
        return datetime.date.fromisoformat(day.strip())
    except ValueError as error:
        raise ToolError(f"unknown day {day!r}") from error


def fitting(rows: Sequence[str], need: Sequence[str]) -> list[str]:
    """The rows that meet every condition of `need`: `before noon`, `after noon`, `non-stop`, `under $700`."""

    def meets(row: str, condition: str) -> bool:
        _, time, price, stops = row.split(" ")
        if condition.startswith("under $"):
            return int(price[1:]) < int(condition.removeprefix("under $"))
        times = {"before noon": time < "12:00", "after noon": time > "12:00"}
        return times.get(condition, stops == condition)

    return [row for row in rows if all(meets(row, condition) for condition in need)]


def draw_rows(random: Random) -> list[str]:
    """Five to eight flights by departure, with distinct ids, times and prices; none leaves at noon sharp."""
    count = random.randint(5, 8)
    ids = random.sample(
        [f"{letter}{number}" for letter in ascii_uppercase for number in range(10, 100)], count
    )
    prices = random.sample(range(100, 1000), count)
    minutes = sorted(random.sample([m for m in range(6 * 60, 23 * 60, 5) if m != 12 * 60], count))
    return [
        f"{id} {minute // 60:02}:{minute % 60:02} ${price} {random.choice(('non-stop', 'stops'))}"
        for id, price, minute in zip(ids, prices, minutes, strict=True)
    ]


def draw_need(random: Random) -> list[str]:
    """No condition in half of the tasks, else one or, sometimes, two."""
    if random.random() < 0.5:
        return []
    kinds = random.sample(("time", "stops", "under"), 2 if random.random() < 0.3 else 1)
    drawn = {
        "time": random.choice(("before noon", "after noon")),
        "stops": "non-stop",
        "under": f"under ${random.randrange(300, 950, 50)}",
    }
    return [drawn[kind] for kind in kinds]


def draw_task(random: Random) -> dict[str, Any]:
    """The fields of one task: request, today, day, date, city, need, rows."""
    need = draw_need(random)
    rows = draw_rows(random)
    while not _is_fair(rows, need):
        rows = draw_rows(random)
    today = datetime.date(2026, 1, 1) + datetime.timedelta(days=random.randrange(700))
    day = _draw_day(random, today)
    city = random.choice(CITIES)
    request = random.choice(REQUESTS).format(city=city, day=day)
    return {
        "request": ", ".join([request, *(_wording(random, condition) for condition in need)]) + ".",
        "today": today.isoformat(),
        "day": day,
        "date": date_of(day, today).isoformat(),
        "city": city,
        "need": need,
        "rows": rows,
    }


def _is_fair(rows: Sequence[str], need: Sequence[str]) -> bool:
    """At least two flights fit and, where there are conditions, one does not; ignoring them costs the task.

    (Only a budget cannot exclude the cheapest flight.) No price equals the budget.
    """
    fit = fitting(rows, need)
    cheapest = min(rows, key=lambda row: cost_of(row, "$"))
    budgets = [condition for condition in need if condition.startswith("under")]
    if len(fit) < 2 or any(budget.endswith(f" ${cost_of(row, '$')}") for budget in budgets for row in rows):
        return False
    return not need or (len(fit) < len(rows) and (need == budgets or cheapest not in fit))


def _draw_day(random: Random, today: datetime.date) -> str:
    later_this_week = WEEKDAYS[today.weekday() + 1 :]
    choices = [f"next {random.choice(WEEKDAYS)}", "tomorrow", f"in {random.randint(2, 9)} days"]
    if later_this_week:
        choices.append(f"this {random.choice(later_this_week)}")
    return choices[0] if random.random() < 0.5 else random.choice(choices[1:])


def _wording(random: Random, condition: str) -> str:
    limit = condition.removeprefix("under $")
    return random.choice(WORDINGS.get(condition, WORDINGS["under"])).format(limit=limit)


class FlightDesk(ChoiceDesk):
    """Book the cheapest flight that fits the request."""

    system = "Book flights."
    unit = "$"
    tasks = Tasks.generated(draw_task, name="flights", train=100_000, dev=1_000, test=10_000)

    def setup(self, task: Task) -> str:
        self.begin((task["city"], task["date"]), task["rows"], fitting(task["rows"], task["need"]))
        return str(task["request"])

    @tool
    def calendar(self, day: str) -> str:
        """Date of a day.

        Args:
            day: such as next Friday
        """
        return date_of(day, datetime.date.fromisoformat(self.task["today"])).isoformat()

    @tool
    def search(
        self,
        city: str,
        date: datetime.date,
        sort: Literal["time", "price"] = "time",
        only: Sequence[Filter] = (),
    ) -> str:
        """List flights.

        Args:
            city: where to
            date: day of departure
            sort: what comes first
            only: what it must be
        """
        place = (city.strip().title(), date.isoformat())
        rows = self.rows if place == self.place else draw_rows(generator(self.task.id, *place))
        return self.show(place, fitting(rows, only), lowest_first=sort == "price")

    @tool
    def fare(self, flight: str) -> str:
        """Fare details.

        Args:
            flight: its id
        """
        bags = cost_of(self.look_up(flight), self.unit) % 3
        return f"{flight}: {bags} bags, {'no refund' if bags < 2 else 'refund'}"

    @tool
    def book(self, flight: str) -> str:
        """Book a flight.

        Args:
            flight: its id
        """
        self.take(flight)
        return f"booked {flight}"

    def solve(self) -> Moves:
        """The careful clerk: asks for what fits, the cheapest first."""
        date = yield call("calendar", day=self.task["day"])
        options: dict[str, Any] = {"sort": "price"}
        if filters := [need for need in self.task["need"] if need in get_args(Filter)]:
            options["only"] = filters  # a budget is no filter: the cheapest meets it if any does
        rows = yield call("search", city=self.task["city"], date=date, **options)
        flight = id_of(rows)
        yield call("book", flight=flight)
        yield say(f"Booked {flight}.")

    def hurried(self) -> Moves:
        """The hurried clerk: books the first flight or, half of the time, the first that fits."""
        date = yield call("calendar", day=self.task["day"])
        rows = yield call("search", city=self.task["city"], date=date)
        fits = generator("hurried", self.task.id).random() < 0.5
        flight = id_of(next(row for row in rows.split("\n") if not fits or row in self.fitting))
        yield call("book", flight=flight)
        yield say(f"Booked {flight}.")
