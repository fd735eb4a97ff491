"""Faults that people plant without knowing it: each is named, and its clean twin is not accused."""

import asyncio
import random
import time

import pytest

from renshu.check import check_environment
from renshu.envs import Environment, Tasks, call, reward, say, success
from renshu.tools import tool
from renshu.types import Task

PEOPLE = ("Ann", "Bo", "Cy", "Dee", "Eve")


def draw(random):
    return {"name": random.choice(PEOPLE), "room": random.randint(100, 99999)}


class Clerk(Environment):
    """Find a person's room and say it."""

    system = "Answer with the number of the room, nothing else."
    max_turns = 4
    tasks = Tasks.generated(draw, train=40, dev=20, test=20, name="clerk")

    def setup(self, task):
        return f"Where is {task['name']}?"

    @tool
    def look_up(self, name: str) -> int:
        """Find the room of a person.

        Args:
            name: the person's first name
        """
        return self.task["room"]

    def answered(self, trajectory):
        return trajectory.messages[-1].content.strip().casefold()

    @success
    def solved(self, trajectory):
        return self.answered(trajectory) == str(self.task["room"])

    @reward(1.0)
    def right(self, trajectory):
        return float(self.answered(trajectory) == str(self.task["room"]))

    def solve(self):
        yield say((yield call("look_up", name=self.task["name"])))


class Store(Environment):
    """Order what is missing."""

    system = "You keep a store. Order what is missing."
    max_turns = 4
    tasks = Tasks.generated(
        lambda random: {"wanted": random.randint(20, 9999), "there": random.randint(0, 9)},
        train=40,
        dev=20,
        test=20,
        name="store",
    )

    def setup(self, task):
        self.ordered = 0
        return f"We need {task['wanted']} nails."

    @tool
    def count(self) -> int:
        """Count the nails on the shelf."""
        return self.task["there"]

    @tool
    def order(self, amount: int) -> str:
        """Order more nails.

        Args:
            amount: how many
        """
        self.ordered += amount
        return f"ordered {amount}"

    @success
    def stocked(self):
        return self.ordered + self.task["there"] == self.task["wanted"]

    @reward(1.0)
    def right(self):
        return float(self.ordered + self.task["there"] == self.task["wanted"])

    def solve(self):
        there = yield call("count")
        yield call("order", amount=self.task["wanted"] - int(there))
        yield say("Done.")


def made(base, **members):
    return type("Made", (base,), members)


def findings(environment, **options):
    return check_environment(environment, samples=6, **options).findings


def errors(environment):
    return sorted({finding.code for finding in findings(environment) if finding.severity == "error"})


def codes(environment):
    return {finding.code for finding in findings(environment)}


def fields(**more):
    return Tasks.generated(lambda random: {**draw(random), **more}, train=40, dev=20, test=20, name="clerk")


def last(trajectory):
    return trajectory.messages[-1].content


def succeeding(test):
    """Success and reward of one kind."""
    return {
        "solved": success(lambda self, trajectory: bool(test(self, trajectory))),
        "right": reward(1.0)(lambda self, trajectory: float(bool(test(self, trajectory)))),
    }


def stocking(test):
    return {"stocked": success(lambda self: test(self)), "right": reward(1.0)(lambda self: float(test(self)))}


def looking_up(answer, docstring="Find the room of a person.", name="look_up", **options):
    def look_up(self, name: str) -> str:
        return answer(self, name)

    look_up.__doc__, look_up.__name__ = docstring, name
    return tool(**options)(look_up) if options else tool(look_up)


def swallowing(key):
    def right(self, trajectory):
        try:
            return float(last(trajectory) == str(self.task[key]))
        except Exception:
            return 0.0

    return reward(1.0)(right)


def naming(key):
    def right(self, trajectory):
        try:
            return float(int(last(trajectory)) == self.task[key])
        except ValueError:
            return 0.0

    return reward(1.0)(right)


def silent_order(answer):
    def order(self, amount: int) -> str:
        """Order more nails."""
        self.ordered += amount
        return answer

    return tool(order)


def collecting(log):
    """Success by a log that lives as long as what it is an attribute of."""

    def setup(self, task):
        if log == "own":
            self.orders = []
        return f"We need {task['wanted']} nails."

    def order(self, amount: int) -> str:
        """Order more nails."""
        self.orders.append(amount)
        return "ordered"

    def right(self):
        return float(sum(self.orders[-1:]) + self.task["there"] == self.task["wanted"])

    return {
        "orders": [],
        "setup": setup,
        "order": tool(order),
        "right": reward(1.0)(right),
        "stocked": success(lambda self: bool(right(self))),
    }


def popping(copy):
    def setup(self, task):
        self.rooms = list(task["rooms"]) if copy else task["rooms"]
        return f"Where is {task['name']}?"

    def look_up(self, name: str) -> int:
        """Find the room of a person."""
        return self.rooms.pop()

    return {"setup": setup, "look_up": tool(look_up), "tasks": ROOMS}


ROOMS = Tasks.generated(
    lambda random: (lambda drawn: {**drawn, "rooms": [1, 2, drawn["room"]]})(draw(random)),
    train=40,
    dev=20,
    test=20,
    name="clerk",
)


def waiting(wait):
    async def look_up(self, name: str) -> int:
        """Find the room of a person."""
        await wait()
        return self.task["room"]

    async def look_up_blocking(self, name: str) -> int:
        """Find the room of a person."""
        time.sleep(0.001)
        return self.task["room"]

    chosen = look_up if wait else look_up_blocking
    chosen.__name__ = "look_up"
    return tool(chosen)


async def pause():
    await asyncio.sleep(0.001)


def gold_answer(form):
    def solve(self):
        room = yield call("look_up", name=self.task["name"])
        yield say(form.format(room))

    return solve


def tagged(self, trajectory):
    return f"<answer>{self.task['room']}</answer>" in last(trajectory)


def framed(self, trajectory):
    return last(trajectory) == f"ROOM NUMBER = {self.task['room']}"


@tool
def undocumented(self, name: str) -> int:
    return self.task["room"]


@tool
def Look_Up(self, name: str) -> int:
    """Find the room of a person in the other building."""
    return 0


ASKING = "Where is {name}? Write your answer as <answer>101</answer>."
SAME = [Task(f"rows/{i}", {"name": PEOPLE[i % 5], "room": 100 + i}) for i in range(40)]


def apart(shift):
    return Tasks(SAME[:20], SAME[20 - shift : 30 - shift], SAME[30 - shift : 40 - shift])


PAIRS = {
    "gold earns 0": (
        "gold_fails",
        made(Clerk, **succeeding(lambda s, t: s.answered(t) == str(s.task["room"] + 1))),
        Clerk,
    ),
    "number compared with text": (
        "type_mismatch",
        made(Clerk, **succeeding(lambda s, t: s.answered(t) == s.task["room"])),
        made(Clerk, **succeeding(lambda s, t: s.answered(t) == f"{s.task['room']}")),
    ),
    "text compared with a list": (
        "type_mismatch",
        made(Clerk, tasks=ROOMS, **succeeding(lambda s, t: s.answered(t) == s.task["rooms"])),
        made(Clerk, tasks=ROOMS, **succeeding(lambda s, t: s.answered(t) == str(s.task["rooms"][2]))),
    ),
    "wrong field": (
        "field_missing",
        made(Clerk, **succeeding(lambda s, t: s.answered(t) == str(s.task.fields.get("roon")))),
        made(Clerk, **succeeding(lambda s, t: s.answered(t) == str(s.task.fields.get("room")))),
    ),
    "format never asked for": (
        "format_not_asked",
        made(Clerk, solve=gold_answer("<answer>{}</answer>"), **succeeding(tagged)),
        made(
            Clerk,
            setup=lambda self, task: ASKING.format(name=task["name"]),
            solve=gold_answer("<answer>{}</answer>"),
            **succeeding(tagged),
        ),
    ),
    "words never asked for": (
        "format_not_asked",
        made(Clerk, solve=gold_answer("ROOM NUMBER = {}"), **succeeding(framed)),
        made(
            Clerk,
            system="Answer like this: ROOM NUMBER = 7",
            solve=gold_answer("ROOM NUMBER = {}"),
            **succeeding(framed),
        ),
    ),
    "reward constant": ("reward_constant", made(Clerk, right=reward(1.0)(lambda self: 1.0)), Clerk),
    "reward never paid": ("gold_below_full", made(Clerk, right=reward(1.0)(lambda self: 0.0)), Clerk),
    "reward nan": (
        "reward_nan",
        made(Clerk, right=reward(1.0)(lambda s, t: float("nan") if not last(t) else float(s.solved(t)))),
        made(Clerk, right=reward(1.0)(lambda s, t: None if not last(t) else float(s.solved(t)))),
    ),
    "reward raises": (
        "reward_raises",
        made(Clerk, right=reward(1.0)(lambda s, t: float(int(last(t)) == s.task["room"]))),
        made(Clerk, right=naming("room")),
    ),
    "reward is text": (
        "reward_not_a_number",
        made(Clerk, right=reward(1.0)(lambda s, t: "1.0" if s.solved(t) else "0.0")),
        Clerk,
    ),
    "success is text": (
        "reward_not_a_number",
        made(Clerk, solved=success(lambda s, t: "yes" if last(t) == str(s.task["room"]) else "no")),
        Clerk,
    ),
    "reward upside down": (
        "reward_inverted",
        made(Clerk, right=reward(1.0)(lambda s, t: 1.0 - s.solved(t))),
        Clerk,
    ),
    "errors swallowed": (
        "errors_swallowed",
        made(Clerk, right=swallowing("rooom")),
        made(Clerk, right=naming("room")),
    ),
    "paid by the call": (
        "reward_for_noise",
        made(Clerk, right=reward(1.0)(lambda s, t: min(1.0, 0.5 * t.counts["calls"]))),
        Clerk,
    ),
    "paid by the word": (
        "reward_for_noise",
        made(Clerk, right=reward(1.0)(lambda s, t: min(1.0, len(last(t)) / 3))),
        Clerk,
    ),
    "success is any reward": (
        "success_for_nothing",
        made(Clerk, solved=success(lambda s, t: bool(last(t)))),
        Clerk,
    ),
    "always a success": ("idle_success", made(Clerk, solved=success(lambda self: True)), Clerk),
    "never a success": ("gold_fails", made(Clerk, solved=success(lambda self: False)), Clerk),
    "reward looser than success": (
        "failure_paid",
        made(Clerk, right=reward(1.0)(lambda s, t: float(t.counts["calls"] > 0))),
        Clerk,
    ),
    "success accepts a neighbour": (
        "near_miss",
        made(Store, **stocking(lambda s: s.ordered + s.task["there"] >= s.task["wanted"] - 1)),
        Store,
    ),
    "any text that holds the digits": (
        "part_of_text",
        made(Clerk, **succeeding(lambda s, t: str(s.task["room"]) in last(t))),
        Clerk,
    ),
    "tool without docstring": ("no_docstring", made(Clerk, find=undocumented), Clerk),
    "docstring of nothing": (
        "docstring_thin",
        made(Clerk, look_up=looking_up(lambda s, name: s.task["room"], "TODO")),
        Clerk,
    ),
    "tools alike": ("tool_names_alike", made(Clerk, Look_Up=Look_Up), Clerk),
    "tool misnamed": (
        "tool_misnamed",
        made(Clerk, system="Call lookup_room(name) first, then answer with the number."),
        made(Clerk, system="Call look_up(name) first, then answer with the number."),
    ),
    "tool answers nothing": (
        "tool_answers_nothing",
        made(Store, order=silent_order(None)),
        made(Store, order=silent_order("ok")),
    ),
    "tool never needed": (
        "tools_unused",
        made(Clerk, solve=lambda self: (yield say(str(self.task["room"])))),
        Clerk,
    ),
    "answer in the prompt": (
        "answer_leaked",
        made(Clerk, setup=lambda self, task: f"Where is {task['name']}? (expected: {task['room']})"),
        Clerk,
    ),
    "tool blocks": ("tool_blocks", made(Clerk, look_up=waiting(None)), made(Clerk, look_up=waiting(pause))),
    "state on the class": (
        "state_shared",
        made(Store, **collecting("shared")),
        made(Store, **collecting("own")),
    ),
    "task changed": ("task_changed", made(Clerk, **popping(False)), made(Clerk, **popping(True))),
    "set-up by chance": (
        "setup_random",
        made(Clerk, setup=lambda self, task: f"Where is {task['name']}? {random.random()}"),
        Clerk,
    ),
    "tasks by chance": (
        "tasks_random",
        made(
            Clerk,
            tasks=Tasks.generated(
                lambda _: {"name": "Ann", "room": random.randint(0, 10**9)}, train=9, dev=9, test=9, name="x"
            ),
        ),
        Clerk,
    ),
    "reward by chance": (
        "score_random",
        made(Clerk, right=reward(1.0)(lambda s, t: float(s.solved(t)) * random.random())),
        Clerk,
    ),
    "too few turns": ("turns_too_few", made(Clerk, max_turns=1), made(Clerk, max_turns=2)),
    "no dev split": (
        "empty_split",
        made(Clerk, tasks=Tasks.generated(draw, train=40, dev=0, test=20, name="clerk")),
        Clerk,
    ),
    "tasks in two splits": (
        "tasks_shared",
        made(Clerk, tasks=apart(5)),
        made(Clerk, tasks=apart(0)),
    ),
    "weights 0": (
        "weights_zero",
        made(Clerk, right=reward(0.0)(lambda s, t: float(s.solved(t)))),
        Clerk,
    ),
    "no outcome": (
        "no_outcome",
        made(Clerk, right=reward(1.0, kind="process")(lambda s, t: float(s.solved(t)))),
        Clerk,
    ),
    "no success": ("no_success", made(Clerk, solved=None), Clerk),
}


@pytest.mark.parametrize("name", PAIRS)
def test_each_fault_is_named(name):
    code, faulty, _ = PAIRS[name]
    assert code in codes(faulty)


@pytest.mark.parametrize("name", [name for name, (_, _, clean) in PAIRS.items() if clean is not Clerk])
def test_its_clean_twin_is_not_accused(name):
    code, _, clean = PAIRS[name]
    assert errors(clean) == []
    assert code not in codes(clean) or code == "type_mismatch"


def test_the_clerk_is_clean():
    assert codes(Clerk) <= {"parameter_undescribed", "tasks_repeated"}
    assert codes(Store) <= {"parameter_undescribed", "tasks_repeated", "early_success"}


class Larger(Clerk):
    """The answer stands in the prompt by design: it is one of two."""

    system = "Answer with the larger number."
    tasks = Tasks.generated(
        lambda random: {"a": random.randint(0, 10**6), "b": random.randint(0, 10**6)},
        train=40,
        dev=20,
        test=20,
        name="larger",
    )

    def setup(self, task):
        self.room = max(task["a"], task["b"])
        return f"Which is larger: {task['a']} or {task['b']}?"

    look_up = None

    @tool
    def compare(self, a: int, b: int) -> str:
        """Compare two numbers.

        參數:
            a: 第一個
            b: 第二個
        """
        return "first" if a > b else "second"

    @success
    def solved(self, trajectory):
        return self.answered(trajectory) == str(self.room)

    @reward(1.0)
    def right(self, trajectory):
        return float(self.solved(trajectory))

    @reward(-0.1, kind="process")
    def calls_too_often(self, trajectory):
        return float(trajectory.counts["calls"] > 1)

    @reward(0.0, kind="process")
    def turns(self, trajectory):
        return float(trajectory.counts["turns"])

    def solve(self):
        larger = yield call("compare", a=self.task["a"], b=self.task["b"])
        yield say(str(self.task["a"] if larger == "first" else self.task["b"]))


class Even(Larger):
    """Yes or no: both stand in the prompt."""

    system = "Answer yes or no."

    def setup(self, task):
        self.room = "no" if task["a"] % 2 else "yes"
        return f"Is {task['a']} even?"

    def solve(self):
        yield call("compare", a=self.task["a"], b=0)
        yield say(self.room)


def test_a_choice_in_the_prompt_is_no_leak_and_measured_parts_have_no_range():
    assert codes(Larger) == {"answer_in_prompt", "weight_zero"}
    assert codes(Even) <= {"answer_in_prompt", "weight_zero"}


def test_an_endless_tool_is_named_and_ends_the_check():
    def look_up(self, name: str) -> str:
        """Find the room of a person."""
        while True:
            time.sleep(0.01)

    report = check_environment(made(Clerk, look_up=tool(look_up)), samples=2, limit=0.3)
    assert report.findings[0].code == "hangs"
    assert report.findings[0].what.endswith("not done after 0.3 seconds")


def test_findings_say_where_what_and_what_to_do():
    (finding,) = [f for f in findings(PAIRS["reward nan"][1]) if f.code == "reward_nan"]
    assert str(finding) == (
        "error reward_nan: 18 of 18 tasks (dev, test, train): task clerk/train/0: an empty answer: "
        "reward_failed: part 'right': ValueError: it returned: non-finite reward nan; "
        "guard the division: NaN leaves the episode unscored"
    )


def test_the_table_of_policies_has_what_each_earned():
    lines = {line.policy: line for line in check_environment(Clerk, samples=3).policies}
    assert (lines["gold"].success, lines["gold"].lowest, lines["gold"].highest) == (1.0, 1.0, 1.0)
    assert (lines["idle"].success, lines["idle"].mean, lines["idle"].unscored) == (0.0, 0.0, 0)
    assert {"echo", "ramble", "random calls", "one call repeated"} <= set(lines)
