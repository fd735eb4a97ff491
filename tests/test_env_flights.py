"""Flights: dates, tasks, and scores as a person would give them."""

import datetime
import re

import pytest

from renshu.envs import call, check_env, play_through, say, think
from renshu.envs.choice import cost_of, id_of
from renshu.envs.flights import FlightDesk, date_of, draw_rows, fitting
from renshu.errors import ToolError
from renshu.seeding import generator
from renshu.types import Message, Stop, Task

WEDNESDAY = datetime.date(2026, 3, 4)
ROWS = [
    "A82 09:30 $975 non-stop",
    "B14 08:00 $410 stops",
    "C55 10:10 $812 non-stop",
    "D31 18:45 $350 non-stop",
]
TASK = Task(
    "flights/test/hand",
    {
        "request": "Book the cheapest flight to Tokyo next Friday, before noon, non-stop.",
        "today": "2026-03-04",
        "day": "next Friday",
        "date": "2026-03-13",
        "city": "Tokyo",
        "need": ["before noon", "non-stop"],
        "rows": ROWS,
    },
)


@pytest.mark.parametrize(
    ("day", "date"),
    [
        ("today", "2026-03-04"),
        ("tomorrow", "2026-03-05"),
        ("in 3 days", "2026-03-07"),
        ("in 1 day", "2026-03-05"),
        ("this Friday", "2026-03-06"),
        ("next Friday", "2026-03-13"),  # not the coming one: Friday of the following week
        ("next Monday", "2026-03-09"),
        (" Next  SUNDAY ", "2026-03-15"),
        ("this Monday", "2026-03-02"),
        ("Friday", "2026-03-06"),
        ("Wednesday", "2026-03-11"),  # the first one after today
        ("2026-04-01", "2026-04-01"),
    ],
)
def test_dates_of_days(day, date):
    assert date_of(day, WEDNESDAY).isoformat() == date


@pytest.mark.parametrize(
    "day", ["", "soon", "in two days", "next", "next week", "in 5000 days", "2026-02-30"]
)
def test_unknown_days_are_refused_with_a_word_to_the_model(day):
    with pytest.raises(ToolError, match="unknown day"):
        date_of(day, WEDNESDAY)


def test_conditions():
    assert fitting(ROWS, []) == ROWS
    assert fitting(ROWS, ["before noon", "non-stop"]) == [ROWS[0], ROWS[2]]
    assert fitting(ROWS, ["after noon"]) == [ROWS[3]]
    assert fitting(ROWS, ["under $812"]) == [ROWS[1], ROWS[3]]


def listed(**options):
    """What `search` shows for the right city and date."""
    return (
        play(call("search", city="Tokyo", date="2026-03-13", **options), say(""))
        .messages[3]
        .content.split("\n")
    )


def test_lists_in_order_and_filtered():
    assert listed() == ROWS
    assert listed(sort="price") == [ROWS[3], ROWS[1], ROWS[2], ROWS[0]]
    assert listed(only=["non-stop"]) == [ROWS[0], ROWS[2], ROWS[3]]
    assert listed(only=["after noon", "non-stop"], sort="price") == [ROWS[3]]
    alone = Task(TASK.id, {**TASK.fields, "rows": ROWS[:3]})
    search = call("search", city="Tokyo", date="2026-03-13", only=["after noon"])
    assert play(search, say(""), task=alone).messages[3].content == "none"


def play(*moves, task=TASK):
    return play_through(FlightDesk(), task, moves)


LOOK = (call("calendar", day="next Friday"), call("search", city="Tokyo", date="2026-03-13"))


def test_the_gold_dialogue():
    trajectory = play_through(FlightDesk(), TASK)
    assert [message.content for message in trajectory.messages] == [
        "Book flights.",
        TASK["request"],
        "",
        "2026-03-13",
        "",
        "\n".join([ROWS[2], ROWS[0]]),
        "",
        "booked C55",
        "Booked C55.",
    ]
    assert trajectory.messages[4].tool_calls[0].arguments == {
        **{"city": "Tokyo", "date": "2026-03-13"},
        **{"sort": "price", "only": ["before noon", "non-stop"]},
    }
    assert trajectory.messages[6].tool_calls[0].arguments == {"flight": "C55"}
    assert trajectory.stop is Stop.ANSWERED
    assert trajectory.counts == {"turns": 4, "calls": 3, "bad_calls": 0, "tool_errors": 0, "timeouts": 0}
    assert trajectory.score.success is True
    assert trajectory.score.parts == {"choice": 1.0, "well_formed": 1.0}
    assert trajectory.score.value == pytest.approx(1.1)


OTHER_DATE = draw_rows(generator(TASK.id, "Tokyo", "2026-03-06"))
EPISODES = {
    "right, without the calendar": ((*LOOK[1:], call("book", flight="C55"), say("Done.")), 1.0, 1.0),
    "right, after asking for details": (
        (*LOOK, call("fare", flight="A82"), call("book", flight="C55"), say("Booked C55.")),
        *(1.0, 1.0),
    ),
    "right, after a mistyped call": (
        (*LOOK, call("book", flight="C5"), call("book", flight="C55"), say("Booked C55.")),
        *(1.0, 0.0),
    ),
    "fits but dearer": ((*LOOK, call("book", flight="A82"), say("Booked A82.")), 0.2, 1.0),
    "has stops": ((*LOOK, call("book", flight="B14"), say("Booked B14.")), 0.0, 1.0),
    "in the evening": ((*LOOK, call("book", flight="D31"), say("Booked D31.")), 0.0, 1.0),
    "wrong date": (
        (
            call("search", city="Tokyo", date="2026-03-06"),
            call("book", flight=id_of(OTHER_DATE[0])),
            say("Booked it."),
        ),
        *(0.0, 1.0),
    ),
    "no booking": ((*LOOK, say("C55 is the cheapest.")), 0.0, 1.0),
    "nothing done": ((say("Booked C55."),), 0.0, 0.0),
    "booked twice": (
        (*LOOK, call("book", flight="C55"), call("book", flight="C55"), say("Booked C55.")),
        *(0.0, 1.0),
    ),
    "dearer one booked first": (
        (*LOOK, call("book", flight="A82"), call("book", flight="C55"), say("Booked C55.")),
        *(0.0, 1.0),
    ),
    "answer names another flight": ((*LOOK, call("book", flight="C55"), say("Booked A82.")), 0.0, 1.0),
    "empty answer": ((*LOOK, call("book", flight="C55"), say("")), 0.0, 1.0),
    "unknown tool": ((call("pay", amount=1), *LOOK, call("book", flight="C55"), say("Done.")), 1.0, 0.0),
    "missing argument": ((call("calendar"), *LOOK, call("book", flight="C55"), say("Done.")), 1.0, 0.0),
}


@pytest.mark.parametrize("name", EPISODES)
def test_scored_as_a_person_would(name):
    moves, choice, well_formed = EPISODES[name]
    score = play(*moves).score
    assert score.parts == {"choice": choice, "well_formed": well_formed}
    assert score.value == pytest.approx(choice + 0.1 * well_formed)
    assert score.success is (choice == 1.0)


def test_endless_calls_end_at_the_turn_limit_and_earn_nothing():
    trajectory = play(*LOOK, call("book", flight="C55"), *[call("fare", flight="C55")] * 9)
    assert trajectory.stop is Stop.TURNS
    assert trajectory.counts["turns"] == FlightDesk.max_turns == 6
    assert (trajectory.score.value, trajectory.score.success) == (0.0, False)


def test_a_flight_is_known_only_once_listed():
    trajectory = play(call("book", flight="C55"), say("Booked C55."))
    assert trajectory.messages[3].content == "error: C55 is not on the list"
    assert trajectory.counts["tool_errors"] == 1


def test_another_place_lists_other_flights_the_same_ones_each_time():
    lists = []
    for city in ("Oslo", "Oslo", "Lima"):
        messages = play(call("search", city=city, date="2026-03-13"), say("")).messages
        lists.append(messages[3].content)
    assert lists[0] == lists[1]
    assert len({*lists, "\n".join(ROWS)}) == 3


def test_the_very_same_row_on_another_date_is_wrong():
    gold = play_through(FlightDesk(), TASK)
    for date, grade in (("2026-03-13", 1.0), ("2026-03-06", 0.0)):
        desk = FlightDesk()
        desk.opening(TASK)
        desk.show(("Tokyo", date), ROWS)
        desk.take("C55")
        assert desk.grade(gold) == grade


def test_tools_are_short_and_in_order():
    tools = FlightDesk().tools()
    assert [spec.name for spec in tools] == ["calendar", "search", "fare", "book"]
    for spec in tools:
        function = spec.schema.get("function", spec.schema)
        texts = [function["description"]]
        texts += [p.get("description", "") for p in function["parameters"]["properties"].values()]
        assert all(1 <= len(text.split()) <= 6 for text in texts), texts


SAMPLE = FlightDesk.tasks.test[:2000]


def test_tasks_keep_their_promises():
    phrases = set()
    for task in SAMPLE:
        rows, fit = task["rows"], fitting(task["rows"], task["need"])
        assert 5 <= len(rows) <= 8
        assert all(re.fullmatch(r"[A-Z]\d\d [012]\d:[0-5]\d \$\d{3} (non-stop|stops)", row) for row in rows)
        assert len({id_of(row) for row in rows}) == len({cost_of(row, "$") for row in rows}) == len(rows)
        assert len(fit) >= 2
        assert bool(task["need"]) == (len(fit) < len(rows))
        assert task["day"] in task["request"]
        assert task["city"] in task["request"]
        assert date_of(task["day"], datetime.date.fromisoformat(task["today"])).isoformat() == task["date"]
        phrases.add(task["request"].replace(task["city"], "*").replace(task["day"], "*").split(",")[0])
    assert len(phrases) >= 5
    conditions = [len(task["need"]) for task in SAMPLE]
    assert {0, 1, 2} == set(conditions)
    assert 0.47 <= sum(map(bool, conditions)) / len(SAMPLE) <= 0.53


def rate(desk, tasks, choose):
    """The share of tasks in which a policy takes the best option."""

    def solved(task):
        environment = desk()
        environment.setup(task)
        return choose(environment) == environment.best

    return sum(map(solved, tasks)) / len(tasks)


def test_thoughtless_policies_rarely_succeed():
    assert 0.14 <= rate(FlightDesk, SAMPLE, lambda desk: desk.rows[0]) <= 0.20
    assert 0.20 <= rate(FlightDesk, SAMPLE, lambda desk: desk.fitting[0]) <= 0.30
    cheapest = rate(FlightDesk, SAMPLE, lambda desk: min(desk.rows, key=lambda row: cost_of(row, "$")))
    assert 0.5 <= cheapest <= 0.68  # right wherever the request has no condition that matters


def test_environment_keeps_its_contract():
    assert check_env(FlightDesk, samples=20) == []


def test_gold_solves_and_hurried_rarely():
    assert all(play_through(FlightDesk(), task).score.success for task in SAMPLE[:50])
    outcomes = []
    for task in SAMPLE[:400]:
        desk = FlightDesk()
        trajectory = play_through(desk, task, desk.hurried())
        assert trajectory.score.parts["well_formed"] == 1.0
        assert all(message.reasoning is None for message in trajectory.messages)
        outcomes.append(trajectory.score.success)
    assert 0.12 <= sum(outcomes) / 400 <= 0.30


def test_a_thought_belongs_to_the_move_that_follows_it():
    trajectory = play(think("a"), call("calendar", day="today"), say("b"))
    assert trajectory.messages[2].reasoning == "a"
    assert trajectory.messages[4] == Message("assistant", "b")
