"""Broken environments are found before training; sound ones are not accused."""

import random

import pytest

from renshu.envs import Environment, Tasks, call, check_env, require_env, reward, say, success, think
from renshu.errors import ContractError, InfrastructureError
from renshu.tools import tool
from renshu.types import Task


class Lamp(Environment):
    """Switch the lamp on."""

    tasks = Tasks.generated(lambda random: {"room": random.randrange(9)}, train=4, dev=1, test=1, name="lamp")

    def setup(self, task):
        self.lit = False
        return f"Light up room {task['room']}."

    @tool
    def switch(self, room: int) -> str:
        """Switch the lamp.

        Args:
            room: its number
        """
        self.lit = room == self.task["room"]
        return "on"

    @success
    def solved(self):
        return self.lit

    @reward(1.0)
    def bright(self):
        return float(self.lit)

    def solve(self):
        yield call("switch", room=self.task["room"])
        yield say("Done.")


def codes(environment):
    return sorted({problem.code for problem in check_env(environment)})


def test_a_sound_environment_has_no_problems():
    assert check_env(Lamp) == []
    require_env(Lamp)


def broken(**members):
    return type("Broken", (Lamp,), members)


@reward(1.0)
def nan_reward(self):
    return float("nan")


@reward(1.0)
def raising_reward(self):
    return {}["lit"]


@reward(1.0)
def half(self):
    return 0.5 * self.lit


@success
def always(self):
    return True


@tool
def unhinted(self, room):
    """Switch the lamp."""


@tool
def silent(self) -> str:
    return "dark"


def wrong_gold(self):
    yield call("switch", room=-1)
    yield say("Done.")


def clumsy_gold(self):
    yield call("swich", room=1)
    yield call("switch", room=self.task["room"])
    yield say("Done.")


def endless_gold(self):
    yield call("switch", room=self.task["room"])


def random_gold(self):
    yield call("switch", room=self.task["room"])
    yield say(str(random.random()))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"bright": None}, ["no_reward"]),
        ({"bright": reward(0.1, kind="format")(lambda self: 1.0)}, ["no_outcome"]),
        ({"solved": None}, ["no_success"]),
        ({"solved_too": always}, ["bad_rubric"]),
        ({"bright": reward(float("nan"))(lambda self: 1.0)}, ["bad_rubric"]),
        ({"dim": unhinted}, ["bad_tool"]),
        ({"dim": silent}, ["no_docstring"]),
        ({"tasks": None}, ["no_tasks"]),
        ({"tasks": Tasks()}, ["no_tasks"]),
        ({"max_turns": 0}, ["no_turns"]),
        ({"setup": lambda self, task: None}, ["setup_failed"]),
        ({"setup": lambda self, task: "  "}, ["setup_failed"]),
        ({"setup": lambda self, task: task["floor"]}, ["setup_failed"]),
        ({"setup": lambda self, task: f"Room {random.random()}"}, ["setup_random"]),
        ({"bright": nan_reward}, ["unscored"]),
        ({"bright": raising_reward}, ["unscored"]),
        ({"bright": half}, ["gold_below_full"]),
        ({"solved": always}, ["idle_success"]),
        ({"solve": wrong_gold}, ["gold_below_full", "gold_fails"]),
        ({"solve": clumsy_gold}, ["gold_faults"]),
        ({"solve": endless_gold}, ["play_failed"]),
        ({"solve": random_gold}, ["gold_random"]),
        ({"user": lambda self, reply: 1 / 0}, ["play_failed"]),
    ],
)
def test_each_fault_is_named(members, expected):
    assert codes(broken(**members)) == expected


def test_problems_are_raised_together_and_say_where():
    with pytest.raises(ContractError, match=r"Broken cannot be trained on:\n  - no_reward.*\n  - no_tasks"):
        require_env(broken(bright=None, tasks=None))
    (problem,) = {
        str(problem)
        for problem in check_env(broken(bright=raising_reward))
        if "lamp/train/0: an" in str(problem)
    }
    assert (
        problem
        == "unscored: task lamp/train/0: an empty answer: reward_failed: part 'bright': KeyError: 'lit'"
    )


def test_an_environment_without_gold_is_sound_and_none_at_rest_is_allowed():
    @reward(1.0)
    def bright(self):
        return 1.0 if self.lit else None

    assert check_env(broken(bright=bright)) == []
    assert check_env(broken(solve=Environment.solve)) == []


def test_errors_of_the_environment_are_no_fault_of_the_policy():
    from renshu.envs import play_through

    crashing = broken(is_done=lambda self: 1 / 0)
    with pytest.raises(InfrastructureError, match=r"Broken\.is_done: ZeroDivisionError"):
        play_through(crashing(), Lamp.tasks.train[0])


def leave(*_):
    raise SystemExit(0)


def test_an_environment_that_leaves_is_named_and_does_not_end_the_process():
    assert codes(broken(setup=leave)) == ["setup_failed"]
    assert codes(broken(solve=leave)) == ["play_failed"]
    assert codes(broken(is_done=leave)) == ["play_failed"]
    assert codes(broken(__init__=leave)) == ["not_made"]


def test_wrong_types_of_declarations_are_named():
    assert codes(broken(max_turns="3")) == ["no_turns"]
    assert codes(broken(system=None)) == ["bad_system"]
    assert codes(broken(tasks=[1])) == ["no_tasks"]


def test_an_error_in_the_moves_is_named():
    from renshu.envs import play_through

    def solve(self):
        yield say(self.nothing)

    with pytest.raises(InfrastructureError, match=r"the moves of Broken, task lamp/train/0: AttributeError"):
        play_through(broken(solve=solve)(), Lamp.tasks.train[0])


@pytest.mark.parametrize("move", [say, think])
@pytest.mark.parametrize("value", [7, None, ["7"]])
def test_what_is_said_or_thought_is_text(move, value):
    with pytest.raises(ContractError, match=rf"{move.__name__}\(.*\): expected text, e.g."):
        move(value)


def test_a_task_that_cannot_be_made_is_named():
    from renshu.errors import DataError

    tasks = Tasks.generated(lambda random: {"x": 1 / 0}, train=1, dev=1, test=1, name="zero")
    with pytest.raises(DataError, match="task zero/train/0 cannot be made: ZeroDivisionError"):
        tasks.split("train")[0]


@pytest.mark.parametrize("method", ["solve", "hurried"])
def test_what_a_class_lacks_is_named(method):
    class Bare(Environment):
        pass

    with pytest.raises(ContractError, match=rf"Bare does not define {method}\(\)"):
        getattr(Bare(), method)()
    with pytest.raises(ContractError, match=r"Bare does not define setup\(\): what the user says first"):
        Bare().setup(Task("bare/train/0"))
