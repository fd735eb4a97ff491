"""An answer printed with its field's name is leaked; what an answer cannot change accuses nobody."""

import json

import pytest

from renshu.check import check_environment
from renshu.envs import Environment, Tasks, call, reward, say, success
from renshu.tools import tool
from renshu.types import Task


def draw(random):
    net, tax = random.randint(100, 999), random.randint(100, 999)
    return {"number": f"inv-{random.randint(1, 99999)}", "net": net, "tax": tax, "gross": net + tax}


class Invoice(Environment):
    system = "Answer with the gross amount, digits only."
    tasks = Tasks.generated(draw, train=300, dev=30, test=60)
    shown = ("number",)

    def setup(self, task):
        record = {key: value for key, value in task.items() if key in self.shown}
        return f"What is the gross amount? {json.dumps(record)}"

    @tool
    def look(self, number: str) -> dict:
        """Net and tax of an invoice.

        Args:
            number: of the invoice
        """
        return {"net": self.task["net"], "tax": self.task["tax"]}

    @success
    def right(self, trajectory):
        return trajectory.messages[-1].content.strip() == str(self.task["gross"])

    @reward(1.0)
    def paid(self, trajectory):
        return float(self.right(trajectory))

    def solve(self):
        yield call("look", number=self.task["number"])
        yield say(str(self.task["gross"]))


class Printed(Invoice):
    """The record is printed with the key; the number beside it is no rival."""

    shown = ("number", "gross")


class Dollars(Invoice):
    """The gold solution writes it in a way that success does not take."""

    def solve(self):
        yield call("look", number=self.task["number"])
        yield say(f"${self.task['gross']}")


class Anything(Invoice):
    """Every answer passes, also one that is a word of the prompt."""

    @success
    def right(self, trajectory):
        return True

    def solve(self):
        yield call("look", number=self.task["number"])
        yield say("amount")


@pytest.mark.parametrize(
    ("environment", "leak"), [(Invoice, []), (Printed, ["answer_leaked"]), (Dollars, []), (Anything, [])]
)
def test_answers_in_the_prompt_and_frames(environment, leak):
    codes = [finding.code for finding in check_environment(environment).findings]
    assert [c for c in codes if c in ("answer_leaked", "answer_in_prompt", "format_not_asked")] == leak


def test_a_gold_that_fails_is_named():
    assert {"gold_fails", "gold_below_full"} <= {f.code for f in check_environment(Dollars).findings}


def test_a_task_is_read_like_a_dict():
    task = Task("desk/train/0", {"item": "nails", "wanted": 3})
    assert (dict(task), task.get("color", "red"), "item" in task) == (
        {"item": "nails", "wanted": 3},
        "red",
        True,
    )
    assert task == Task("desk/train/0", {"item": "nails", "wanted": 3})
    assert task != Task("desk/train/1", {"item": "nails", "wanted": 3})


def test_a_long_value_is_shown_by_its_start():
    from renshu.check.state import _brief

    assert _brief([1, 2]) == "[1, 2]"
    assert _brief("a" * 60) == "'" + "a" * 39 + "…"  # no spaces to cut at
