"""Repairs: the second desk, with the craft of flights and nothing else of it."""

import re

import pytest

from renshu.envs import call, check_env, play_through, say
from renshu.envs.choice import cost_of, id_of
from renshu.envs.flights import FlightDesk
from renshu.envs.repairs import RepairDesk, fitting
from renshu.types import Stop, Task

ROWS = [
    "Mara lift q45 van",
    "Ben pump q12 van",
    "Iris lift q31 bike",
    "Zeno lift q52 van",
    "Uwe lift q40 van",
]
TASK = Task(
    "repairs/test/hand",
    {
        "request": "Job 621: send the worker with the shortest queue, able to mend lifts, with a van.",
        "job": 621,
        "site": "harbour",
        "need": ["lift", "van"],
        "rows": ROWS,
    },
)
SAMPLE = RepairDesk.tasks.test[:2000]


def test_conditions():
    assert fitting(ROWS, ["lift", "van"]) == [ROWS[0], ROWS[3], ROWS[4]]
    assert fitting(ROWS, ["under q45"]) == [ROWS[1], ROWS[2], ROWS[4]]
    assert fitting(ROWS, []) == ROWS


def test_the_gold_dialogue():
    trajectory = play_through(RepairDesk(), TASK)
    asked = trajectory.messages[4].tool_calls[0].arguments
    assert asked == {"site": "harbour", "order": "queue", "only": ["lift", "van"]}
    assert [m.content for m in trajectory.messages[3:]] == [
        *("harbour", "", "\n".join(ROWS[i] for i in (4, 0, 3)), "", "Uwe is on the way", "Sent Uwe."),
    ]
    assert trajectory.score.value == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("moves", "choice"),
    [
        ((call("crew", site="harbour"), call("assign", worker="Uwe"), say("Uwe comes.")), 1.0),
        ((call("crew", site=" Harbour "), call("assign", worker="Mara"), say("Mara comes.")), 0.2),
        ((call("crew", site="harbour"), call("assign", worker="Ben"), say("Ben comes.")), 0.0),
        ((call("crew", site="harbour"), call("assign", worker="Uwe"), say("Ben comes.")), 0.0),
        ((call("crew", site="harbour"), say("Uwe comes.")), 0.0),
        ((call("crew", site="harbour"), *[call("assign", worker="Uwe")] * 2, say("Uwe comes.")), 0.0),
    ],
)
def test_scored_as_a_person_would(moves, choice):
    trajectory = play_through(RepairDesk(), TASK, moves)
    assert trajectory.stop is Stop.ANSWERED
    assert trajectory.score.parts["choice"] == choice


def test_a_worker_from_the_wrong_site_is_wrong():
    desk = RepairDesk()
    desk.opening(TASK)
    elsewhere = desk.crew("museum").split("\n")
    moves = [call("crew", site="museum"), call("assign", worker=id_of(elsewhere[0])), say("Done.")]
    assert play_through(RepairDesk(), TASK, moves).score.parts["choice"] == 0.0
    assert desk.locate(621) == "harbour"
    assert desk.locate(622) == desk.locate(622)


def test_tasks_keep_their_promises():
    for task in SAMPLE:
        rows, fit = task["rows"], fitting(task["rows"], task["need"])
        assert 5 <= len(rows) <= 8
        assert all(re.fullmatch(r"[A-Z][a-z]+ (lift|pump|gate) q\d\d (van|bike)", row) for row in rows)
        assert len({id_of(row) for row in rows}) == len({cost_of(row, "q") for row in rows}) == len(rows)
        assert len(fit) >= 2
        assert str(task["job"]) in task["request"]
    assert 0.47 <= sum(bool(task["need"]) for task in SAMPLE) / len(SAMPLE) <= 0.53


def test_thoughtless_policies_rarely_succeed():
    first, first_fitting = 0, 0
    for task in SAMPLE:
        desk = RepairDesk()
        desk.setup(task)
        first += desk.rows[0] == desk.best
        first_fitting += desk.fitting[0] == desk.best
    assert 0.13 <= first / len(SAMPLE) <= 0.20
    assert 0.20 <= first_fitting / len(SAMPLE) <= 0.30


def test_environment_keeps_its_contract():
    assert check_env(RepairDesk, samples=20) == []


def test_nothing_is_shared_with_flights():
    assert not {spec.name for spec in RepairDesk().tools()} & {spec.name for spec in FlightDesk().tools()}
