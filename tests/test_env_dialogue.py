"""Allow-list, simulated user, terminator, counts, and demonstrations."""

import pytest

from renshu.envs import Environment, Tasks, call, demonstrations, play_through, reward, say, success
from renshu.envs.flights import FlightDesk
from renshu.errors import ConfigError, ContractError, ToolError
from renshu.tools import tool
from renshu.types import Message, Stop, Task


class Quiz(Environment):
    """Guess a number; the user answers."""

    system = "Guess."
    max_turns = 4
    tasks = Tasks(train=[Task("quiz/train/0", {"number": 7})])

    def setup(self, task):
        self.guesses = []
        return "Which number?"

    def helper(self, x: int) -> int:
        """Not a tool."""
        return x

    @tool
    def zoom(self) -> str:
        """A hint."""
        return "below 9"

    @tool
    def ask(self, number: int) -> str:
        """Ask for a number.

        Args:
            number: the guess
        """
        if number > 9:
            raise ToolError("too large")
        self.guesses.append(number)
        return "higher" if number < self.task["number"] else "equal or lower"

    def user(self, reply):
        if reply.content == "?":
            return None
        self.guesses.append(int(reply.content))
        return "no" if self.guesses[-1] != 7 else "yes"

    def is_done(self):
        return 7 in self.guesses

    @success
    def solved(self):
        return self.is_done()

    @reward(1.0)
    def right(self):
        return float(self.is_done())

    @reward(0.5, kind="process")
    def quick(self, trajectory):
        return 1.0 / trajectory.counts["turns"]


class Louder(Quiz):
    """Overrides keep their place in the allow-list; new tools come last; a tool can be taken away."""

    @tool
    def shout(self) -> str:
        """Shout."""
        return "!"

    @tool
    def zoom(self) -> str:
        """Another hint."""
        return "odd"

    def ask(self, number):
        return "not a tool any more"


def names(environment):
    return [spec.name for spec in environment.tools()]


def play(environment, *moves):
    return play_through(environment, Quiz.tasks.train[0], moves)


def test_only_marked_methods_can_be_called_in_order_of_definition():
    assert names(Quiz()) == ["zoom", "ask"]
    assert names(Louder()) == ["zoom", "shout"]
    assert play(Louder(), call("zoom"), say("?")).messages[3].content == "odd"
    refused = play(Quiz(), call("helper", x=1), say("?"))
    assert refused.counts == {"turns": 2, "calls": 1, "bad_calls": 1, "tool_errors": 0, "timeouts": 0}
    assert refused.messages[3] == Message(
        "tool", "error: no tool 'helper'; there are: zoom, ask", name="helper"
    )


def test_simulated_user_and_terminator():
    trajectory = play(Quiz(), say("3"), say("7"), say("not reached"))
    assert [(m.role, m.content) for m in trajectory.messages] == [
        ("system", "Guess."),
        ("user", "Which number?"),
        ("assistant", "3"),
        ("user", "no"),
        ("assistant", "7"),
        ("user", "yes"),
    ]
    assert trajectory.stop is Stop.ENV_DONE
    assert trajectory.score.parts == {"right": 1.0, "quick": 0.5}
    assert trajectory.score.value == 1.25


def test_the_users_silence_ends_the_episode():
    assert play(Quiz(), say("?")).stop is Stop.ANSWERED


def test_the_terminator_is_asked_after_calls_and_wins_over_the_turn_limit():
    assert play(Quiz(), call("ask", number=7)).stop is Stop.ENV_DONE
    assert play(Quiz(), *[call("ask", number=1)] * 3, call("ask", number=7)).stop is Stop.ENV_DONE
    assert play(Quiz(), *[call("ask", number=1)] * 5).stop is Stop.TURNS


def test_faults_are_told_apart():
    trajectory = play(Quiz(), call("ask", number="x"), call("ask", number=10), call("ask"), say("?"))
    assert trajectory.counts == {"turns": 4, "calls": 3, "bad_calls": 2, "tool_errors": 1, "timeouts": 0}
    assert "too large" in trajectory.messages[5].content


def test_a_script_that_ends_early_is_an_error():
    with pytest.raises(ContractError, match=r"end them with say"):
        play(Quiz(), call("zoom"))


def test_demonstrations_have_the_share_asked_for():
    tasks = FlightDesk.tasks.train[:20]
    rows = demonstrations(FlightDesk, tasks, careful=0.3, seed=1)
    assert [row.task for row in rows] == list(tasks)
    assert sum(row.careful for row in rows) == 6
    for row in rows:
        (search,) = [c for m in row.messages for c in m.tool_calls if c.name == "search"]
        assert ("sort" in search.arguments) == row.careful
        assert row.messages[-1].content.startswith("Booked ")
        assert len(row.tools) == 4
    assert rows == demonstrations(FlightDesk, tasks, careful=0.3, seed=1)
    assert rows != demonstrations(FlightDesk, tasks, careful=0.3, seed=2)


def test_all_careful_are_gold_and_all_hurried_are_not():
    tasks = FlightDesk.tasks.train[:4]
    gold = demonstrations(FlightDesk, tasks, careful=1.0, seed=0)
    assert [row.messages for row in gold] == [play_through(FlightDesk(), task).messages for task in tasks]
    assert not any(row.careful for row in demonstrations(FlightDesk, tasks, careful=0.0, seed=0))


def test_demonstrations_that_cannot_be_played_are_refused():
    with pytest.raises(ConfigError, match=r"Quiz has no solve\(\)"):
        demonstrations(Quiz, Quiz.tasks.train, careful=1.0, seed=0)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        demonstrations(FlightDesk, FlightDesk.tasks.train[:1], careful=1.5, seed=0)
