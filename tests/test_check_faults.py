"""Faults that people plant without knowing it: each is named, and its clean twin is not accused."""

import random
import time

import pytest

from check_kit import (
    ASKING,
    ROOMS,
    Clerk,
    Look_Up,
    Store,
    apart,
    codes,
    collecting,
    draw,
    errors,
    findings,
    framed,
    gold_answer,
    last,
    looking_up,
    made,
    naming,
    pause,
    popping,
    silent_order,
    stocking,
    succeeding,
    swallowing,
    tagged,
    undocumented,
    waiting,
)
from renshu.check import check_environment
from renshu.envs import Tasks, call, reward, say, success
from renshu.tools import tool

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
