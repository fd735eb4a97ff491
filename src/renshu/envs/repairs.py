"""Repairs: "Job 621: send the worker with the shortest queue, able to mend lifts, with a van."

A second desk with the same craft as `flights` (look up where, list, take the lowest that fits) and nothing
else in common: other tools, words, columns and numbers. It shows whether training carries over.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal, get_args

from renshu.envs.choice import ChoiceDesk, cost_of, id_of
from renshu.envs.moves import Moves, call, say
from renshu.envs.tasks import Tasks
from renshu.seeding import generator
from renshu.tools import tool
from renshu.types import Task

SITES = (
    *(
        "harbour",
        "airport",
        "museum",
        "stadium",
        "library",
        "market",
        "castle",
        "bakery",
        "brewery",
        "theatre",
    ),
    *("hospital", "school", "station", "factory", "garage", "hotel"),
)
WORKERS = (
    *(
        "Ada",
        "Ben",
        "Cleo",
        "Dirk",
        "Elsa",
        "Finn",
        "Gina",
        "Hugo",
        "Iris",
        "Jack",
        "Kira",
        "Lars",
        "Mara",
        "Nils",
    ),
    *("Olga", "Paul", "Rita", "Sven", "Tara", "Uwe", "Vera", "Walt", "Yara", "Zeno"),
)
Filter = Literal["lift", "pump", "gate", "van", "bike"]
SKILLS = ("lift", "pump", "gate")
REQUESTS = (
    "Job {job}: send the worker with the shortest queue",
    "Please assign job {job} to the worker with the shortest queue",
    "Who has the shortest queue? Assign them to job {job}",
    "Job {job} is urgent. Assign the worker with the shortest queue",
)
WORDINGS = {
    "lift": ("able to mend a lift", "lift skill needed"),
    "pump": ("able to mend a pump", "pump skill needed"),
    "gate": ("able to mend a gate", "gate skill needed"),
    "van": ("with a van", "van needed"),
    "under": ("queue under {limit}", "queue below {limit}"),
}


def fitting(rows: Sequence[str], need: Sequence[str]) -> list[str]:
    """The rows that meet every condition of `need`: a skill, `van`, `under q60`."""

    def meets(row: str, condition: str) -> bool:
        if condition.startswith("under q"):
            return cost_of(row, "q") < int(condition.removeprefix("under q"))
        return condition in row.split(" ")

    return [row for row in rows if all(meets(row, condition) for condition in need)]


def draw_rows(random: Random) -> list[str]:
    """Five to eight workers by name, with distinct names and queues."""
    count = random.randint(5, 8)
    queues = random.sample(range(10, 100), count)
    return [
        f"{name} {random.choice(SKILLS)} q{queue} {random.choice(('van', 'bike'))}"
        for name, queue in zip(sorted(random.sample(WORKERS, count)), queues, strict=True)
    ]


def draw_task(random: Random) -> dict[str, Any]:
    """The fields of one task: request, job, site, need, rows. Half have no condition, else one or, sometimes,
    two.
    """
    need: list[str] = []
    if random.random() < 0.5:
        conditions = {
            "skill": random.choice(SKILLS),
            "van": "van",
            "under": f"under q{random.randrange(30, 95, 5)}",
        }
        need = [
            conditions[kind] for kind in random.sample(list(conditions), 2 if random.random() < 0.3 else 1)
        ]
    rows = draw_rows(random)
    while not _is_fair(rows, need):
        rows = draw_rows(random)
    job = random.randint(100, 999)
    words = [random.choice(REQUESTS).format(job=job), *(_wording(random, condition) for condition in need)]
    return {
        "request": ", ".join(words) + ".",
        "job": job,
        "site": random.choice(SITES),
        "need": need,
        "rows": rows,
    }


def _is_fair(rows: Sequence[str], need: Sequence[str]) -> bool:
    """At least two workers fit and, where there are conditions, one does not; ignoring them costs the task.

    (Only a limit cannot exclude the shortest queue.)
    """
    fit = fitting(rows, need)
    shortest = min(rows, key=lambda row: cost_of(row, "q"))
    limits = [condition for condition in need if condition.startswith("under")]
    return len(fit) >= 2 and (not need or (len(fit) < len(rows) and (need == limits or shortest not in fit)))


def _wording(random: Random, condition: str) -> str:
    limit = condition.removeprefix("under q")
    return random.choice(WORDINGS.get(condition, WORDINGS["under"])).format(limit=limit)


class RepairDesk(ChoiceDesk):
    """Assign a job to the fitting worker with the shortest queue."""

    system = "Assign repair jobs."
    unit = "q"
    tasks = Tasks.generated(draw_task, name="repairs", train=100_000, dev=1_000, test=10_000)

    def setup(self, task: Task) -> str:
        self.begin((task["site"],), task["rows"], fitting(task["rows"], task["need"]))
        return str(task["request"])

    @tool
    def locate(self, job: int) -> str:
        """Site of a job.

        Args:
            job: its number
        """
        return self.task["site"] if job == self.task["job"] else generator(self.task.id, job).choice(SITES)

    @tool
    def crew(
        self,
        site: str,
        order: Literal["name", "queue"] = "name",
        only: Sequence[Filter] = (),
    ) -> str:
        """Workers near a site.

        Args:
            site: its name
            order: what comes first
            only: what they mend or drive
        """
        place = (site.strip().lower(),)
        rows = self.rows if place == self.place else draw_rows(generator(self.task.id, *place))
        return self.show(place, fitting(rows, only), lowest_first=order == "queue")

    @tool
    def profile(self, worker: str) -> str:
        """About a worker.

        Args:
            worker: first name
        """
        return f"{worker}: {cost_of(self.look_up(worker), self.unit) % 9 + 1} years here"

    @tool
    def assign(self, worker: str) -> str:
        """Give the job to a worker.

        Args:
            worker: first name
        """
        self.take(worker)
        return f"{worker} is on the way"

    def solve(self) -> Moves:
        """The careful dispatcher: asks for those who fit, the shortest queue first."""
        site = yield call("locate", job=self.task["job"])
        options: dict[str, Any] = {"order": "queue"}
        if filters := [need for need in self.task["need"] if need in get_args(Filter)]:
            options["only"] = filters  # a limit is no filter: the shortest queue meets it if any does
        rows = yield call("crew", site=site, **options)
        worker = id_of(rows)
        yield call("assign", worker=worker)
        yield say(f"Sent {worker}.")

    def hurried(self) -> Moves:
        """The hurried dispatcher: assigns the first worker or, half of the time, the first who fits."""
        site = yield call("locate", job=self.task["job"])
        rows = yield call("crew", site=site)
        fits = generator("hurried", self.task.id).random() < 0.5
        worker = id_of(next(row for row in rows.split("\n") if not fits or row in self.fitting))
        yield call("assign", worker=worker)
        yield say(f"Sent {worker}.")
